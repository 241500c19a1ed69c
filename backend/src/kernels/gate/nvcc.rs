//! nvcc: where it is, and what ptxas says that kernels use.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use sha2::{Digest, Sha256};

use super::Instance;
use super::limits::Measured;
use crate::compile::Source;

/// The release that the table was measured with; another one's register allocation differs.
const RELEASE: &str = "13.0";

/// What NVRTC is given, as far as nvcc has it, and a report.
const OPTIONS: [&str; 5] = ["-cubin", "-O3", "-std=c++17", "-Xptxas", "-v"];

/// Instances in one run of nvcc: parsing CUDA's own header takes longer than compiling five kernels.
const BATCH: usize = 24;

/// What a kernel uses on one architecture: registers of a thread, bytes of static shared memory of a block, bytes of a
/// thread's stack, and bytes of its spill stores and loads.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) registers: u32,
    pub(super) shared: u32,
    pub(super) stack: u32,
    pub(super) spill: u32,
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Usage { registers, shared, stack, spill } = self;
        write!(f, "{registers} registers and bytes: {shared} shared, {stack} stack, {spill} spilled")
    }
}

pub(super) struct Nvcc {
    path: PathBuf,
    /// All that `--version` prints.
    version: String,
}

impl Nvcc {
    /// `$NVCC`, or the first of the right release: in the checkout's `.cuda`, `$CUDA_HOME`, `PATH`, `/usr/local/cuda`.
    pub(super) fn find() -> Result<Nvcc, String> {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let places = match variable("NVCC") {
            Some(path) => vec![PathBuf::from(path)],
            None => places(variable("CUDA_HOME"), variable("PATH")),
        };
        let mut tried = String::new();
        for path in places {
            match Nvcc::at(&path) {
                Ok(nvcc) => return Ok(nvcc),
                Err(why) => tried += &format!("\n    {}: {why}", path.display()),
            }
        }
        Err(format!(
            "the compile gate needs nvcc {RELEASE}; scripts/install-nvcc.sh puts it into .cuda/. Tried:{tried}"
        ))
    }

    fn at(path: &Path) -> Result<Nvcc, String> {
        let output = Command::new(path).arg("--version").output().map_err(|error| error.to_string())?;
        let version = String::from_utf8_lossy(&output.stdout).into_owned();
        match release(&version) {
            Some(RELEASE) => Ok(Nvcc { path: path.into(), version }),
            Some(other) => Err(format!("release {other}")),
            None => Err("it does not tell its release".into()),
        }
    }

    /// What each instance uses on each of its architectures, and what did not compile.
    pub(super) fn measure<'a>(&self, instances: &'a [Instance]) -> (Vec<Measured<'a>>, Vec<String>) {
        let jobs: Vec<Job> = instances
            .iter()
            .flat_map(|instance| instance.archs.iter().map(move |&arch| (instance, arch)))
            .map(|(instance, arch)| Job { instance, arch, key: self.key(instance, arch) })
            .collect();
        let cache = Cache::open();
        let (known, new): (Vec<&Job>, Vec<&Job>) =
            jobs.iter().partition(|job| cache.entries.contains_key(&job.key));
        // Instances of one file and architecture share a run.
        let mut groups: BTreeMap<(&str, &str), Vec<&Job>> = BTreeMap::new();
        for job in new {
            groups.entry((job.instance.file, job.arch)).or_default().push(job);
        }
        let batches: Vec<&[&Job]> = groups.values().flat_map(|jobs| jobs.chunks(BATCH)).collect();
        let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            for _ in 0..crate::compile::default_threads().min(batches.len()) {
                scope.spawn(|| {
                    while let Some(batch) = batches.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let result = self.compile(batch);
                        if let Ok(usages) = &result {
                            cache.add(batch.iter().map(|job| &*job.key).zip(usages));
                        }
                        results.lock().unwrap().push((*batch, result));
                    }
                });
            }
        });
        let mut measured: Vec<Measured> =
            known.iter().map(|job| (&*job.instance.source.name, job.arch, cache.entries[&job.key])).collect();
        let mut problems = Vec::new();
        for (batch, result) in results.into_inner().unwrap() {
            match result {
                Ok(usages) => {
                    for (job, usage) in batch.iter().zip(usages) {
                        measured.push((&*job.instance.source.name, job.arch, usage));
                    }
                }
                Err(why) => problems.push(why),
            }
        }
        measured.sort_unstable_by_key(|&(name, arch, _)| (name, arch));
        (measured, problems)
    }

    /// The identity of a measurement.
    fn key(&self, instance: &Instance, arch: &str) -> String {
        let mut hash = Sha256::new();
        for part in [&self.version, &OPTIONS.join(" "), arch, instance.entry, &instance.source.text] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Compiles jobs of one file and architecture in one run.
    fn compile(&self, batch: &[&Job]) -> Result<Vec<Usage>, String> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let (instance, arch) = (batch[0].instance, batch[0].arch);
        let unique = format!("kiln-gate-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let source = std::env::temp_dir().join(format!("{unique}.cu"));
        let cubin = source.with_extension("cubin");
        let texts: Vec<&Instance> = batch.iter().map(|job| job.instance).collect();
        let written = std::fs::write(&source, batch_text(&texts));
        let output = written.and_then(|()| {
            let mut command = Command::new(&self.path);
            command.args(OPTIONS).arg(format!("-arch={arch}")).arg("-o").args([&cubin, &source]).output()
        });
        let _ = (std::fs::remove_file(&source), std::fs::remove_file(&cubin));
        let output = output.map_err(|error| format!("{}: {error}", self.path.display()))?;
        let log = String::from_utf8_lossy(&output.stderr) + String::from_utf8_lossy(&output.stdout);
        let failed =
            |what: &str| format!("{} for {arch}, {} instances: {what}\n{log}", instance.file, batch.len());
        if !output.status.success() {
            return Err(failed("nvcc failed"));
        }
        let usages = parse(&log).map_err(|why| failed(&why))?;
        let missing = || failed("nvcc reports nothing on some of them");
        (0..batch.len()).map(|i| usages.get(&symbol(i)).copied().ok_or_else(missing)).collect()
    }
}

struct Job<'a> {
    instance: &'a Instance,
    arch: &'static str,
    key: String,
}

fn places(cuda_home: Option<OsString>, path: Option<OsString>) -> Vec<PathBuf> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut places = vec![workspace.join(".cuda/nvidia/cu13/bin/nvcc")];
    places.extend(cuda_home.map(|home| Path::new(&home).join("bin/nvcc")));
    let in_path = path.iter().flat_map(std::env::split_paths).map(|folder| folder.join("nvcc"));
    places.extend(in_path.filter(|nvcc| nvcc.is_file()));
    places.push("/usr/local/cuda/bin/nvcc".into());
    places
}

/// "13.0" of a line such as "Cuda compilation tools, release 13.0, V13.0.88".
fn release(version: &str) -> Option<&str> {
    Some(version.split_once("release ")?.1.split([',', '\n']).next()?.trim())
}

/// What instance `i` of a batch is called.
fn symbol(i: usize) -> String {
    format!("kiln_gate_{i}")
}

/// The text of several instances. Each is in a namespace of its own, under a name of its own and with its own macros, so
/// it compiles to the same code as alone.
fn batch_text(instances: &[&Instance]) -> String {
    let mut text = String::new();
    for (i, instance) in instances.iter().enumerate() {
        let (Source { name, text: own, .. }, entry, symbol) = (&instance.source, instance.entry, symbol(i));
        // Messages then name the instance.
        let name = name.replace('\\', "\\\\").replace('"', "\\\"");
        text += &format!(
            "#define {entry} {symbol}\nnamespace in_{symbol} {{\n#line 1 \"{name}\"\n{own}\n}}\n#undef {entry}\n"
        );
        macros(own).into_iter().for_each(|name| text += &format!("#undef {name}\n"));
    }
    text
}

/// The macros that a text defines.
fn macros(text: &str) -> BTreeSet<&str> {
    let name = |line: &'_ str| line.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(line.len());
    let defines = text.lines().filter_map(|line| line.trim_start().strip_prefix("#define "));
    defines.map(|line| &line[..name(line)]).collect()
}

/// Each kernel's usage from ptxas's report.
///
/// # Errors
/// A function that a kernel calls spills, or ptxas warns of lost speed.
fn parse(log: &str) -> Result<BTreeMap<String, Usage>, String> {
    // The number before `what`.
    let number = |line: &str, what: &str| -> u32 {
        let digits = line.split(what).next().filter(|before| before.len() < line.len());
        digits.and_then(|before| before.trim_end().rsplit([' ', ',']).next()?.parse().ok()).unwrap_or(0)
    };
    let mut usages: BTreeMap<String, Usage> = BTreeMap::new();
    let (mut kernel, mut function) = (None, None);
    for line in log.lines() {
        if line.contains("Potential Performance Loss") {
            return Err(line.to_owned());
        } else if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            let name = rest.split('\'').next().unwrap_or(rest).to_owned();
            usages.insert(name.clone(), Usage::default());
            kernel = Some(name);
        } else if let Some((_, name)) = line.split_once("Function properties for ") {
            function = Some(name.trim().to_owned());
        } else if line.contains("bytes stack frame") {
            let spill = number(line, " bytes spill stores") + number(line, " bytes spill loads");
            match function.as_ref().and_then(|name| usages.get_mut(name)) {
                Some(usage) => (usage.stack, usage.spill) = (number(line, " bytes stack frame"), spill),
                None if spill > 0 => {
                    return Err(format!(
                        "{} spills {spill} bytes",
                        function.as_deref().unwrap_or("a function")
                    ));
                }
                None => {}
            }
        } else if line.contains("Used ") && line.contains(" registers") {
            let Some(usage) = kernel.as_ref().and_then(|name| usages.get_mut(name)) else { continue };
            usage.registers = number(line, " registers");
            usage.shared = number(line, " bytes smem");
            // With what is called.
            usage.stack = usage.stack.max(number(line, " bytes cumulative stack size"));
        }
    }
    Ok(usages)
}

/// Measurements of earlier runs, in the build's folder. Without one, nothing is remembered.
struct Cache {
    path: Option<PathBuf>,
    entries: BTreeMap<String, Usage>,
}

impl Cache {
    fn open() -> Cache {
        // Test binaries are in `deps` of the build's folder.
        let path = std::env::current_exe().ok().and_then(|exe| {
            let folder = exe.parent().filter(|folder| folder.ends_with("deps"))?;
            Some(folder.with_file_name("kernel-usage.txt"))
        });
        let text = path.as_ref().and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default();
        let entries = text.lines().filter_map(|line| {
            let mut words = line.split(' ');
            let key = words.next().filter(|key| key.len() == 64)?.to_owned();
            let numbers: Vec<u32> = words.map(str::parse).collect::<Result<_, _>>().ok()?;
            let [registers, shared, stack, spill] = numbers[..] else { return None };
            Some((key, Usage { registers, shared, stack, spill }))
        });
        Cache { entries: entries.collect(), path }
    }

    /// Remembers at once, so that a run which is interrupted need not start anew.
    fn add<'a>(&self, measured: impl Iterator<Item = (&'a str, &'a Usage)>) {
        let Some(path) = &self.path else { return };
        let lines: String = measured
            .map(|(key, u)| format!("{key} {} {} {} {}\n", u.registers, u.shared, u.stack, u.spill))
            .collect();
        let file = OpenOptions::new().create(true).append(true).open(path);
        // One write for whole lines, which another process's do not split.
        if let Err(error) = file.and_then(|mut file| file.write_all(lines.as_bytes())) {
            println!("{}: {error}", path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
ptxas info    : 272 bytes gmem
ptxas info    : Compiling entry function 'kiln_gate_1' for 'sm_90a'
ptxas info    : Function properties for kiln_gate_1
    40 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 48 bytes cumulative stack size, 256 bytes smem, 4 bytes cmem[2]
ptxas info    : Compile time = 343.390 ms
ptxas info    : Function properties for __internal_trig_reduction_slowpathd
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Compiling entry function 'kiln_gate_0' for 'sm_90a'
ptxas info    : Function properties for kiln_gate_0
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 255 registers, used 0 barriers
";

    #[test]
    fn the_report_gives_each_kernels_usage() {
        let usages = parse(LOG).unwrap();
        assert_eq!(usages["kiln_gate_1"], Usage { registers: 32, shared: 256, stack: 48, spill: 20 });
        assert_eq!(usages["kiln_gate_0"], Usage { registers: 255, ..Usage::default() });
        assert_eq!(usages.len(), 2);
    }

    #[test]
    fn a_called_function_that_spills_and_lost_speed_are_errors() {
        let spills = LOG.replace(
            "    0 bytes stack frame, 0 bytes spill stores",
            "    0 bytes stack frame, 4 bytes spill stores",
        );
        assert!(parse(&spills).unwrap_err().contains("__internal_trig_reduction_slowpathd spills 4 bytes"));
        let slow =
            "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized";
        assert!(parse(&format!("{LOG}{slow}\n")).unwrap_err().contains("wgmma"));
    }

    #[test]
    fn other_releases_are_told_from_their_version() {
        let text = "nvcc: NVIDIA (R) Cuda compiler driver\nCuda compilation tools, release 13.0, V13.0.88\nBuild cuda_13.0";
        assert_eq!(release(text), Some(RELEASE));
        assert_eq!(release("Cuda compilation tools, release 12.8, V12.8.61"), Some("12.8"));
        assert_eq!(release("command not found"), None);
    }

    #[test]
    fn macros_of_an_instance_end_with_it() {
        assert_eq!(
            macros("#define A 1\n  #define B(x) \\\n    x\n#ifdef C\n#define D\n"),
            BTreeSet::from(["A", "B", "D"])
        );
    }
}
