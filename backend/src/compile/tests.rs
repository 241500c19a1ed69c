use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Barrier, mpsc};
use std::time::SystemTime;

use super::*;

/// A folder of its own for each test, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("kiln-compile-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        Self(path)
    }

    fn path(&self) -> &Path {
        &self.0
    }

    fn cache(&self) -> Option<DiskCache> {
        Some(DiskCache::open(&self.0).unwrap())
    }

    fn files(&self) -> Vec<PathBuf> {
        fs::read_dir(&self.0).unwrap().map(|item| item.unwrap().path()).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// "Compiles" to a text of all it was given; fails for `error`, panics for `panic`.
#[derive(Default)]
struct Fake {
    version: (i32, i32),
    fixed: Vec<String>,
    compiled: AtomicUsize,
    pause: Duration,
}

impl Compiler for Fake {
    fn version(&self) -> Result<(i32, i32)> {
        Ok(self.version)
    }

    fn fixed_options(&self) -> Vec<String> {
        self.fixed.clone()
    }

    fn compile(&self, source: &Source, arch: &str) -> Result<Vec<u8>> {
        self.compiled.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(self.pause);
        match source.text.as_str() {
            "error" => Err(Error::Compile {
                kernel: source.name.clone(),
                arch: arch.into(),
                log: "line 7: no such thing".into(),
            }),
            "panic" => panic!("lost my head"),
            text => Ok(expected(text, arch)),
        }
    }
}

fn expected(text: &str, arch: &str) -> Vec<u8> {
    format!("cubin of {text} for {arch}").into_bytes()
}

fn source(text: &str) -> Source {
    Source { name: "test".into(), text: text.into(), options: vec!["-O3".into()] }
}

fn fake() -> Arc<Fake> {
    Arc::new(Fake { version: (13, 0), ..Fake::default() })
}

fn key(text: &str) -> Key {
    Key::new(&source(text), "sm_90a", &*fake()).unwrap()
}

#[test]
fn second_process_finds_the_kernel_on_disk() {
    let folder = Folder::new();
    for round in 0..2 {
        let fake = fake();
        let compiler = KernelCompiler::new(fake.clone(), folder.cache(), 2);
        for _ in 0..3 {
            assert_eq!(&*compiler.get(&source("a"), "sm_90a").unwrap(), expected("a", "sm_90a"));
        }
        let stats = compiler.stats();
        assert_eq!((stats.misses, stats.disk_hits, stats.memory_hits), (1 - round, round, 2));
        assert_eq!(fake.compiled.load(Ordering::SeqCst) as u64, 1 - round);
    }
    assert_eq!(folder.files().len(), 1);
}

#[test]
fn every_ingredient_changes_the_key() {
    let with_options = |options: &[&str]| Source {
        options: options.iter().map(|&option| option.to_owned()).collect(),
        ..source("a")
    };
    let of = |source: &Source, arch: &str, version, fixed: &[&str]| {
        let fixed = fixed.iter().map(|&option| option.to_owned()).collect();
        Key::new(source, arch, &Fake { version, fixed, ..Fake::default() }).unwrap()
    };
    let keys = [
        of(&with_options(&[]), "sm_90a", (13, 0), &[]),
        of(&Source { text: "b".into(), ..with_options(&[]) }, "sm_90a", (13, 0), &[]),
        of(&with_options(&[]), "sm_80", (13, 0), &[]),
        of(&with_options(&[]), "sm_90a", (13, 1), &[]),
        of(&with_options(&[]), "sm_90a", (12, 0), &[]),
        of(&with_options(&["-x", "-y"]), "sm_90a", (13, 0), &[]),
        of(&with_options(&["-y", "-x"]), "sm_90a", (13, 0), &[]),
        of(&with_options(&["-x-y"]), "sm_90a", (13, 0), &[]),
        of(&with_options(&["-y"]), "sm_90a", (13, 0), &["-x"]),
        of(&with_options(&[]), "sm_90a", (13, 0), &["-x", "-y"]),
    ];
    for (i, a) in keys.iter().enumerate() {
        for b in &keys[i + 1..] {
            assert_ne!(a, b);
        }
    }
    let renamed = Source { name: "other".into(), ..with_options(&[]) };
    assert_eq!(keys[0], of(&renamed, "sm_90a", (13, 0), &[]));
}

#[test]
fn damaged_entries_are_rebuilt() {
    let folder = Folder::new();
    KernelCompiler::new(fake(), folder.cache(), 1).get(&source("a"), "sm_90a").unwrap();
    let file = folder.files().remove(0);
    let good = fs::read(&file).unwrap();

    let flipped = (0..good.len()).map(|i| {
        let mut bytes = good.clone();
        bytes[i] ^= 1 << (i % 8);
        bytes
    });
    let truncated = (0..good.len()).map(|len| good[..len].to_vec());
    let longer = [[&good[..], b"x"].concat(), b"garbage".repeat(100), vec![0; 4096]];
    for bad in flipped.chain(truncated).chain(longer) {
        fs::write(&file, &bad).unwrap();
        let compiler = KernelCompiler::new(fake(), folder.cache(), 1);
        assert_eq!(&*compiler.get(&source("a"), "sm_90a").unwrap(), expected("a", "sm_90a"));
        assert_eq!((compiler.stats().misses, compiler.stats().disk_hits), (1, 0));
        assert_eq!(fs::read(&file).unwrap(), good);
    }
}

#[test]
fn entry_under_another_name_is_not_taken() {
    let folder = Folder::new();
    let cache = folder.cache().unwrap();
    cache.store(&key("a"), b"payload");
    let file = folder.files().remove(0);
    fs::rename(file, folder.path().join(format!("{}.cubin", key("b")))).unwrap();
    assert_eq!(cache.load(&key("b")), None);
}

#[test]
fn each_kernel_is_compiled_once_by_eight_threads() {
    let folder = Folder::new();
    let fake = Arc::new(Fake { version: (13, 0), pause: Duration::from_millis(1), ..Fake::default() });
    let compiler = KernelCompiler::new(fake.clone(), folder.cache(), 4);
    let start = Barrier::new(8);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (compiler, start) = (&compiler, &start);
            scope.spawn(move || {
                start.wait();
                for i in 0..50 {
                    let text = format!("kernel {}", (i * 7 + thread * 3) % 50);
                    let cubin = compiler.get(&source(&text), "sm_90a").unwrap();
                    assert_eq!(&*cubin, expected(&text, "sm_90a"));
                }
            });
        }
    });
    assert_eq!(fake.compiled.load(Ordering::SeqCst), 50);
    let stats = compiler.stats();
    assert_eq!((stats.misses, stats.memory_hits), (50, 350));
    assert_eq!(folder.files().len(), 50);
}

#[test]
fn failure_reports_the_log_and_is_tried_again() {
    let folder = Folder::new();
    let fake = fake();
    let compiler = KernelCompiler::new(fake.clone(), folder.cache(), 1);
    for round in 1..=2 {
        let error = compiler.get(&source("error"), "sm_90a").unwrap_err().to_string();
        assert!(error.contains("line 7: no such thing"), "{error}");
        assert_eq!(fake.compiled.load(Ordering::SeqCst), round);
    }
    assert_eq!(compiler.stats().failures, 2);
    assert!(folder.files().is_empty());
    compiler.get(&source("a"), "sm_90a").unwrap();
}

/// Runs `get` on eight threads at once and gives up after ten seconds.
fn get_from_eight_threads(compiler: &KernelCompiler, text: &'static str) -> Vec<Result<Arc<[u8]>>> {
    let (sender, results) = mpsc::channel();
    for _ in 0..8 {
        let (compiler, sender) = (compiler.clone(), sender.clone());
        std::thread::spawn(move || sender.send(compiler.get(&source(text), "sm_90a")));
    }
    (0..8).map(|_| results.recv_timeout(Duration::from_secs(10)).expect("a waiter hangs")).collect()
}

#[test]
fn panic_in_the_compiler_reaches_every_waiter_as_an_error() {
    let fake = Arc::new(Fake { pause: Duration::from_millis(50), ..Fake::default() });
    let compiler = KernelCompiler::new(fake, None, 1);
    for result in get_from_eight_threads(&compiler, "panic") {
        let error = result.unwrap_err().to_string();
        assert!(error.contains("the compiler panicked: lost my head"), "{error}");
    }
    compiler.prefetch([source("panic"), source("a")], "sm_90a");
    wait_for(|| compiler.shared.state().workers == 0);
    compiler.get(&source("a"), "sm_90a").unwrap();
    assert!(compiler.stats().memory_hits > 0);
}

fn wait_for(condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(20), "waited too long");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn prefetch_compiles_each_kernel_once() {
    let fake = fake();
    let compiler = KernelCompiler::new(fake.clone(), None, 3);
    compiler.prefetch((0..40).map(|i| source(&format!("{i}"))), "sm_90a");
    compiler.prefetch((0..40).map(|i| source(&format!("{i}"))), "sm_90a");
    for i in 0..40 {
        compiler.get(&source(&format!("{i}")), "sm_90a").unwrap();
    }
    wait_for(|| compiler.shared.state().workers == 0);
    assert_eq!(fake.compiled.load(Ordering::SeqCst), 40);
}

/// Blocks in every kernel but `now` until told to go on.
struct Blocking {
    go_on: Mutex<mpsc::Receiver<()>>,
    running: AtomicUsize,
}

impl Compiler for Blocking {
    fn version(&self) -> Result<(i32, i32)> {
        Ok((13, 0))
    }

    fn compile(&self, source: &Source, arch: &str) -> Result<Vec<u8>> {
        if source.text != "now" {
            self.running.fetch_add(1, Ordering::SeqCst);
            let _ = self.go_on.lock().unwrap().recv();
        }
        Ok(expected(&source.text, arch))
    }
}

#[test]
fn get_does_not_wait_behind_the_queue() {
    let (release, go_on) = mpsc::channel();
    let blocking = Arc::new(Blocking { go_on: Mutex::new(go_on), running: AtomicUsize::new(0) });
    let compiler = KernelCompiler::new(blocking.clone(), None, 2);
    compiler.prefetch([source("slow 1"), source("slow 2"), source("slow 3"), source("now")], "sm_90a");
    wait_for(|| blocking.running.load(Ordering::SeqCst) == 2);
    compiler.get(&source("now"), "sm_90a").unwrap();
    assert_eq!(compiler.shared.state().workers, 2);
    // One in flight is joined, not compiled a second time.
    let joined = std::thread::spawn({
        let compiler = compiler.clone();
        move || compiler.get(&source("slow 1"), "sm_90a")
    });
    drop(release);
    joined.join().unwrap().unwrap();
    wait_for(|| compiler.shared.state().workers == 0);
    assert_eq!(compiler.stats().misses, 4);
}

#[test]
fn folder_that_cannot_exist_is_an_error() {
    let folder = Folder::new();
    fs::write(folder.path().join("file"), "").unwrap();
    for place in [folder.path().join("file/kernels"), folder.path().join("file"), "/proc/kiln/kernels".into()]
    {
        DiskCache::open(&place).unwrap_err();
    }
}

#[test]
fn folder_that_others_can_write_to_is_refused() {
    let folder = Folder::new();
    for (mode, safe) in [(0o770, false), (0o702, false), (0o777, false), (0o755, true), (0o500, true)] {
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(DiskCache::open(folder.path()).is_ok(), safe, "{mode:o}");
    }
}

#[test]
fn new_folder_is_private() {
    let folder = Folder::new();
    let inner = folder.path().join("a/b");
    DiskCache::open(&inner).unwrap();
    for path in [inner.parent().unwrap(), &inner] {
        assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o700);
    }
}

#[test]
fn folder_of_another_user_is_refused() {
    // Only root may give a folder away; anyone else finds root's folders refused.
    let folder = Folder::new();
    match std::os::unix::fs::chown(folder.path(), Some(12345), None) {
        Ok(()) => assert!(DiskCache::open(folder.path()).unwrap_err().contains("belongs to user 12345")),
        Err(_) => assert!(DiskCache::open(Path::new("/usr")).unwrap_err().contains("belongs to user 0")),
    }
}

#[test]
fn full_disk_warns_once_and_compiles_on() {
    let folder = Folder::new();
    DiskCache::open(folder.path()).unwrap().store(&key("old"), &expected("old", "sm_90a"));
    let mut cache = DiskCache::open(folder.path()).unwrap();
    cache.set_write(|file, bytes| {
        io::Write::write_all(file, &bytes[..bytes.len() / 2])?;
        Err(io::ErrorKind::StorageFull.into())
    });
    let compiler = KernelCompiler::new(fake(), Some(cache), 1);
    for text in ["a", "b", "old"] {
        assert_eq!(&*compiler.get(&source(text), "sm_90a").unwrap(), expected(text, "sm_90a"));
    }
    assert!(compiler.shared.cache.as_ref().unwrap().warned());
    assert_eq!(compiler.stats().disk_hits, 1);
    assert_eq!(folder.files().len(), 1, "half-written files stay behind");
}

#[test]
fn folder_that_vanishes_warns_and_compiles_on() {
    let folder = Folder::new();
    let cache = DiskCache::open(folder.path()).unwrap();
    fs::remove_dir(folder.path()).unwrap();
    let compiler = KernelCompiler::new(fake(), Some(cache), 1);
    compiler.get(&source("a"), "sm_90a").unwrap();
    compiler.get(&source("b"), "sm_90a").unwrap();
    assert!(compiler.shared.cache.as_ref().unwrap().warned());
}

#[test]
fn entry_that_cannot_be_read_warns_and_compiles_on() {
    let folder = Folder::new();
    fs::create_dir(folder.path().join(format!("{}.cubin", key("a")))).unwrap();
    let compiler = KernelCompiler::new(fake(), folder.cache(), 1);
    compiler.get(&source("a"), "sm_90a").unwrap();
    assert!(compiler.shared.cache.as_ref().unwrap().warned());
}

#[test]
fn old_entries_and_old_temporary_files_are_removed() {
    let folder = Folder::new();
    let days_ago = |days: u32| SystemTime::now() - Duration::from_secs(24 * 60 * 60) * days;
    let age = |path: &Path, days| fs::File::open(path).unwrap().set_modified(days_ago(days)).unwrap();
    for (name, days) in [("old.tmp", 2), ("new.tmp", 0), ("unrelated", 9)] {
        fs::write(folder.path().join(name), "x").unwrap();
        age(&folder.path().join(name), days);
    }
    let mut cache = DiskCache::open(folder.path()).unwrap();
    cache.set_max_bytes(10_000);
    for i in 0..9u32 {
        cache.store(&key(&format!("{i}")), &[0; 1000]);
        age(&folder.path().join(format!("{}.cubin", key(&format!("{i}")))), 20 - i);
    }
    // Reading the oldest makes it the newest.
    assert!(cache.load(&key("0")).is_some());
    cache.store(&key("9"), &[0; 1000]);
    let left = (0..10).filter(|i| cache.load(&key(&format!("{i}"))).is_some());
    // An entry is its header longer than 1000 bytes, so the tenth is one too many; six fit in three quarters.
    assert_eq!(left.collect::<Vec<_>>(), [0, 5, 6, 7, 8, 9]);
    let exists = |name| folder.path().join(name).exists();
    assert!(!exists("old.tmp") && exists("new.tmp") && exists("unrelated"));
}

/// Runs in the child processes of the next test; does nothing by itself.
#[test]
fn child_process() {
    let Some(folder) = std::env::var_os("KILN_TEST_CACHE_FOLDER") else { return };
    for round in 0..20 {
        // A new instance each round reads what the others wrote.
        let cache = DiskCache::open(Path::new(&folder)).unwrap();
        let compiler = KernelCompiler::new(fake(), Some(cache), 2);
        compiler.prefetch((0..20).map(|i| source(&format!("{round} {i}"))), "sm_90a");
        for i in 0..20 {
            let text = format!("{round} {i}");
            assert_eq!(&*compiler.get(&source(&text), "sm_90a").unwrap(), expected(&text, "sm_90a"));
        }
        assert!(!compiler.shared.cache.as_ref().unwrap().warned());
    }
}

#[test]
fn several_processes_share_one_folder() {
    let folder = Folder::new();
    let (_, module) = module_path!().split_once("::").unwrap();
    let child = || {
        std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &format!("{module}::child_process")])
            .env("KILN_TEST_CACHE_FOLDER", folder.path())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap()
    };
    let children: Vec<_> = (0..4).map(|_| child()).collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
    }
    let files = folder.files();
    assert_eq!(files.len(), 400);
    assert!(files.iter().all(|file| file.extension().unwrap() == "cubin"));
    let cache = folder.cache().unwrap();
    assert!(
        (0..20).all(|i| cache.load(&key(&format!("3 {i}"))) == Some(expected(&format!("3 {i}"), "sm_90a")))
    );
}

#[test]
fn development_kernels_replace_embedded_ones() {
    let folder = Folder::new();
    fs::write(folder.path().join("add.cu"), "from the folder").unwrap();
    let text = |folder, name| kernel_text_from(folder, name, "embedded");
    assert_eq!(text(None, "add.cu").unwrap(), "embedded");
    assert_eq!(text(Some(folder.path().as_os_str()), "add.cu").unwrap(), "from the folder");
    let error = text(Some(folder.path().as_os_str()), "sub.cu").unwrap_err().to_string();
    assert!(error.contains("KILN_KERNEL_DIR") && error.contains("sub.cu"), "{error}");
}

/// NVRTC if this machine has it; it needs no GPU.
fn nvrtc() -> Option<Nvrtc> {
    match Nvrtc.version() {
        Ok(_) => Some(Nvrtc),
        Err(error) => {
            println!("SKIPPED: {error}");
            None
        }
    }
}

const SCALE: &str = r#"extern "C" __global__ void scale(float* x, float by) { x[threadIdx.x] *= by; }"#;

#[test]
fn nvrtc_makes_cubins() {
    let Some(nvrtc) = nvrtc() else { return };
    let plain = Source { options: vec![], ..source(SCALE) };
    for arch in ["sm_80", "sm_90a"] {
        let cubin = nvrtc.compile(&plain, arch).unwrap();
        assert!(cubin.starts_with(b"\x7fELF") && cubin.windows(5).any(|bytes| bytes == b"scale"));
    }
    let with = |option: &str| Source { options: vec![option.into()], ..plain.clone() };
    // A function without a mark is a device function.
    let unmarked =
        "float twice(float x) { return 2 * x; }\n".to_owned() + &SCALE.replace("by;", "twice(by);");
    nvrtc.compile(&Source { text: unmarked, ..plain.clone() }, "sm_90a").unwrap();
    let defined = Source { text: SCALE.replace("by;", "BY;"), ..with("-DBY=3.f") };
    nvrtc.compile(&defined, "sm_90a").unwrap();
}

#[test]
fn nvrtc_errors_carry_the_log() {
    let Some(nvrtc) = nvrtc() else { return };
    let log = |text: &str, option: Option<&str>, arch: &str| {
        let options = option.map(str::to_owned).into_iter().collect();
        let source = Source { name: "norm/bad".into(), text: text.into(), options };
        match nvrtc.compile(&source, arch) {
            Err(Error::Compile { kernel, log, .. }) if kernel == "norm/bad" => log,
            other => panic!("{other:?}"),
        }
    };
    let text = log("__global__ void k() { y = 1; }", None, "sm_90a");
    assert!(text.contains("norm/bad(1)") && text.contains("\"y\" is undefined"), "{text}");
    assert!(log(SCALE, Some("--no-such-option"), "sm_90a").contains("no-such-option"));
    assert!(log(SCALE, None, "sm_1").contains("gpu-architecture"));
    assert!(log(SCALE, None, "compute_90").contains("not a real architecture"));
    assert!(log("a\0b", None, "sm_90a").contains("NUL"));
}

/// Symptom: the process ended with a stack overflow from a thread of 2 MiB.
#[test]
fn nvrtc_survives_deep_nesting() {
    let Some(nvrtc) = nvrtc() else { return };
    let nested = format!("{}x[1]{}", "(1.f + ".repeat(2000), ")".repeat(2000));
    let text = format!("extern \"C\" __global__ void k(float* x) {{ x[0] = {nested}; }}");
    nvrtc.compile(&Source { name: "deep".into(), text, options: vec![] }, "sm_90a").unwrap();
}

#[test]
fn nvrtc_behind_the_cache() {
    let Some(nvrtc) = nvrtc() else { return };
    let folder = Folder::new();
    let compiler: Arc<dyn Compiler> = Arc::new(nvrtc);
    let kernel = Source { options: vec![], ..source(SCALE) };
    let first = KernelCompiler::new(compiler.clone(), folder.cache(), 2).get(&kernel, "sm_90a").unwrap();
    let second = KernelCompiler::new(compiler, folder.cache(), 2);
    assert_eq!(second.get(&kernel, "sm_90a").unwrap(), first);
    assert_eq!((second.stats().disk_hits, second.stats().misses), (1, 0));
}
