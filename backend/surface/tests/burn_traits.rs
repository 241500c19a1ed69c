//! The table against the sources of the pinned Burn: the same traits, methods, arguments and types in both.
//!
//! For another version of Burn, print a table from its sources instead of typing one:
//!
//! ```text
//! KILN_BURN_BACKEND=path/to/burn-backend cargo test -p kiln-surface --test burn_traits -- --ignored --nocapture
//! ```
//!
//! A type without a tag is printed between question marks.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use kiln_surface::{BACKEND_METHODS, with_backend_methods};
use quote::ToTokens;
use syn::{FnArg, Item, ItemTrait, Pat, ReturnType, TraitItem, TypeParamBound};

/// The version that the table describes.
const VERSION: &str = "0.21.0";

/// Burn's type of an argument by its tag, without spaces.
#[rustfmt::skip]
const ARGUMENTS: &[(&str, &str)] = &[
    ("F", "FloatTensor<B>"), ("I", "IntTensor<B>"), ("B", "BoolTensor<B>"), ("Q", "QuantizedTensor<B>"),
    ("RefF", "&FloatTensor<B>"), ("RefI", "&IntTensor<B>"), ("RefB", "&BoolTensor<B>"), ("RefQ", "&QuantizedTensor<B>"),
    ("OptF", "Option<FloatTensor<B>>"), ("OptB", "Option<BoolTensor<B>>"),
    ("VecF", "Vec<FloatTensor<B>>"), ("VecI", "Vec<IntTensor<B>>"),
    ("VecB", "Vec<BoolTensor<B>>"), ("VecQ", "Vec<QuantizedTensor<B>>"),
    ("Prim", "TensorPrimitive<B>"), ("QParams", "QuantizationParametersPrimitive<B>"),
    ("Transaction", "TransactionPrimitive<B>"),
    ("Device", "&Device<B>"), ("Data", "TensorData"), ("Scalar", "Scalar"), ("Exponent", "Scalar"),
    ("Shape", "Shape"), ("Axes", "&[usize]"), ("Slices", "&[Slice]"),
    ("usize", "usize"), ("bool", "bool"), ("f64", "f64"), ("OptUsize", "Option<usize>"), ("Pair", "[usize;2]"),
    ("Range", "Range<i64>"), ("Distribution", "Distribution"),
    ("FloatDType", "FloatDType"), ("IntDType", "IntDType"), ("BoolDType", "BoolDType"),
    ("Update", "IndexingUpdateOp"), ("Scheme", "&QuantScheme"),
    ("Conv1", "ConvOptions<1>"), ("Conv2", "ConvOptions<2>"), ("Conv3", "ConvOptions<3>"),
    ("ConvT1", "ConvTransposeOptions<1>"), ("ConvT2", "ConvTransposeOptions<2>"), ("ConvT3", "ConvTransposeOptions<3>"),
    ("Deform", "DeformConvOptions<2>"), ("Interp", "InterpolateOptions"), ("GridSample", "GridSampleOptions"),
    ("Unfold", "UnfoldOptions"), ("Attention", "AttentionModuleOptions"),
];

/// Burn's type of a result by its tag, without spaces.
#[rustfmt::skip]
const RESULTS: &[(&str, &str)] = &[
    ("F", "FloatTensor<B>"), ("I", "IntTensor<B>"), ("B", "BoolTensor<B>"), ("Q", "QuantizedTensor<B>"),
    ("Prim", "TensorPrimitive<B>"),
    ("FI", "(FloatTensor<B>,IntTensor<B>)"), ("II", "(IntTensor<B>,IntTensor<B>)"),
    ("QI", "(QuantizedTensor<B>,IntTensor<B>)"), ("FF", "(FloatTensor<B>,FloatTensor<B>)"),
    ("bool", "bool"), ("Device", "Device<B>"),
    ("ReadData", "implFuture<Output=Result<TensorData,ExecutionError>>+Send"),
    ("ReadInt", "implFuture<Output=IntTensor<B>>+'static+Send"),
    ("ReadTransaction", "implFuture<Output=Result<TransactionPrimitiveData,ExecutionError>>+Send"),
    ("MaxPool1d", "MaxPool1dWithIndices<B>"), ("MaxPool2d", "MaxPool2dWithIndices<B>"),
    ("MaxPool1dGrad", "MaxPool1dBackward<B>"), ("MaxPool2dGrad", "MaxPool2dBackward<B>"),
    ("DeformGrad", "DeformConv2dBackward<B>"),
];

/// The scalars that are exponents.
const EXPONENTS: &[&str] = &[
    "float_powi_scalar",
    "float_powi_scalar_impl",
    "int_powi_scalar",
    "int_powi_scalar_impl",
    "q_powi_scalar",
];

/// The types of the `Backend` trait's own methods, as [`signature`] writes them.
const BACKEND_SIGNATURES: [&str; 10] = [
    "ad_enabled(&Self::Device) -> bool",
    "device_count(u16) -> usize",
    "dtype_usage(&Self::Device, DType) -> DTypeUsageSet",
    "memory_cleanup(&Self::Device) -> ()",
    "memory_persistent_allocations(&Self::Device, Input, Func) -> Output",
    "name(&Self::Device) -> String",
    "seed(&Self::Device, u64) -> ()",
    "staging(Iter, &Self::Device) -> ()",
    "supports_dtype(&Self::Device, DType) -> bool",
    "sync(&Self::Device) -> Result<(),ExecutionError>",
];

/// Name, arguments with their types, and result.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Method {
    name: String,
    arguments: Vec<(String, String)>,
    result: String,
}

/// The methods of each trait.
type Traits = BTreeMap<String, Vec<Method>>;

/// One line of the table: name, arguments with their tags, tag of the result.
type Line = (&'static str, &'static [(&'static str, &'static str)], &'static str);

/// Per trait the lines of `node` and of `host`.
type Table = &'static [(&'static str, &'static [Line], &'static [Line])];

macro_rules! lines {
    ($(trait $trait:ident {
        node { $($node:ident ($($node_arg:ident: $node_tag:ident),*) -> $node_ret:ident;)* }
        host { $($host:ident ($($host_arg:ident: $host_tag:ident),*) -> $host_ret:ident;)* }
    })*) => {
        &[$((
            stringify!($trait),
            &[$((
                stringify!($node),
                &[$((stringify!($node_arg), stringify!($node_tag))),*],
                stringify!($node_ret),
            )),*],
            &[$((
                stringify!($host),
                &[$((stringify!($host_arg), stringify!($host_tag))),*],
                stringify!($host_ret),
            )),*],
        )),*]
    };
}

const TABLE: Table = with_backend_methods! { lines! {} };

/// The table with Burn's types for its tags.
fn of_table() -> Traits {
    let named = |types: &[(&str, &str)], tag: &str| {
        let found = types.iter().find(|(known, _)| *known == tag);
        found.unwrap_or_else(|| panic!("the tag {tag} has no type")).1.to_string()
    };
    let method = |&(name, arguments, result): &Line| Method {
        name: name.into(),
        arguments: arguments.iter().map(|(name, tag)| (name.to_string(), named(ARGUMENTS, tag))).collect(),
        result: named(RESULTS, result),
    };
    TABLE
        .iter()
        .map(|(name, node, host)| (name.to_string(), node.iter().chain(*host).map(method).collect()))
        .collect()
}

/// The folder of the pinned burn-backend, or the one that `KILN_BURN_BACKEND` names.
fn burn_backend() -> PathBuf {
    if let Some(folder) = std::env::var_os("KILN_BURN_BACKEND") {
        return folder.into();
    }
    let tool = |name: &str, fallback: &str| std::env::var_os(name).unwrap_or_else(|| fallback.into());
    // Without the filter, offline metadata asks for the dependencies of all platforms, which were never downloaded.
    let about = output(Command::new(tool("RUSTC", "rustc")).arg("-vV"));
    let about = String::from_utf8(about).expect("rustc speaks UTF-8");
    let host = about.lines().find_map(|line| line.strip_prefix("host: ")).expect("rustc names its host");
    let metadata = output(
        Command::new(tool("CARGO", "cargo"))
            .args(["metadata", "--format-version", "1", "--offline", "--filter-platform", host])
            .current_dir(env!("CARGO_MANIFEST_DIR")),
    );
    let metadata: serde_json::Value = serde_json::from_slice(&metadata).expect("cargo metadata is JSON");
    let packages = metadata["packages"].as_array().expect("a list of packages");
    let burn =
        packages.iter().find(|package| package["name"] == "burn-backend" && package["version"] == VERSION);
    let burn = burn.unwrap_or_else(|| panic!("burn-backend {VERSION} is not among the dependencies"));
    Path::new(burn["manifest_path"].as_str().expect("a path")).parent().expect("a folder").into()
}

/// What a command prints.
fn output(command: &mut Command) -> Vec<u8> {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// All traits in the Rust files of a folder.
fn traits_in(folder: &Path) -> Vec<ItemTrait> {
    let mut found = Vec::new();
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    for entry in entries {
        let path = entry.expect("a readable folder").path();
        if path.is_dir() {
            found.extend(traits_in(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).expect("a readable file");
            let file = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            found.extend(file.items.into_iter().filter_map(|item| match item {
                Item::Trait(item) => Some(item),
                _ => None,
            }));
        }
    }
    found
}

/// A type as text, without spaces, trailing commas and paths into Burn's own modules.
fn text(tokens: impl ToTokens) -> String {
    let text: String = tokens.to_token_stream().to_string().split_whitespace().collect();
    text.replace("crate::tensor::", "").replace(",>", ">")
}

/// The methods of a trait in the sources.
fn methods(item: &ItemTrait) -> Vec<Method> {
    let functions = item.items.iter().filter_map(|item| match item {
        TraitItem::Fn(function) => Some(&function.sig),
        _ => None,
    });
    functions
        .map(|signature| {
            let arguments = signature.inputs.iter().map(|argument| {
                let FnArg::Typed(argument) = argument else { panic!("{} takes self", signature.ident) };
                let Pat::Ident(pattern) = &*argument.pat else {
                    panic!("{} takes a pattern", signature.ident)
                };
                (pattern.ident.to_string().trim_start_matches('_').to_string(), text(&argument.ty))
            });
            let result = match &signature.output {
                ReturnType::Default => "()".into(),
                ReturnType::Type(_, result) => text(result),
            };
            Method { name: signature.ident.to_string(), arguments: arguments.collect(), result }
        })
        .collect()
}

/// The operation traits in the sources: the supertraits of `Backend` that take the backend as a parameter.
fn of_sources(traits: &[ItemTrait]) -> Traits {
    let supers = backend(traits).supertraits.iter().filter_map(|bound| match bound {
        TypeParamBound::Trait(bound) => {
            let last = bound.path.segments.last()?;
            (!last.arguments.is_empty()).then(|| last.ident.to_string())
        }
        _ => None,
    });
    let of = |name: String| {
        let item = traits.iter().find(|item| item.ident == name).unwrap_or_else(|| panic!("no trait {name}"));
        let methods = methods(item);
        (name, methods)
    };
    supers.map(of).collect()
}

/// A method's name and types as text.
fn signature(method: &Method) -> String {
    let arguments: Vec<&str> = method.arguments.iter().map(|(_, argument)| argument.as_str()).collect();
    format!("{}({}) -> {}", method.name, arguments.join(", "), method.result)
}

fn backend(traits: &[ItemTrait]) -> &ItemTrait {
    traits.iter().find(|item| item.ident == "Backend").expect("the trait Backend")
}

/// What is in one but not in the other, as lines to read.
fn missing(here: &Traits, there: &Traits) -> Vec<String> {
    let mut lines = Vec::new();
    for (name, methods) in here {
        let known: BTreeSet<&Method> = there.get(name).into_iter().flatten().collect();
        let unknown = methods.iter().filter(|method| !known.contains(method));
        lines.extend(unknown.map(|method| format!("{name}::{method:?}")));
    }
    lines
}

#[test]
fn the_table_is_burns_traits() {
    let traits = traits_in(&burn_backend().join("src/backend"));
    let (table, sources) = (of_table(), of_sources(&traits));
    let names = |traits: &Traits| traits.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&table), names(&sources), "the operation traits");

    let (extra, absent) = (missing(&table, &sources), missing(&sources, &table));
    assert!(
        extra.is_empty() && absent.is_empty(),
        "in the table but not in Burn:\n{}\nin Burn but not in the table:\n{}",
        extra.join("\n"),
        absent.join("\n"),
    );

    let own = methods(backend(&traits));
    let names: BTreeSet<&str> = own.iter().map(|method| method.name.as_str()).collect();
    assert_eq!(names, BACKEND_METHODS.into(), "the methods of Backend");
    let signatures: BTreeSet<String> = own.iter().map(signature).collect();
    assert_eq!(signatures, BACKEND_SIGNATURES.map(String::from).into(), "the types of Backend's methods");

    let count: usize = table.values().map(Vec::len).sum();
    assert_eq!(count + BACKEND_METHODS.len(), 428);
}

#[test]
fn each_line_stands_on_its_side() {
    for (_, node, host) in TABLE {
        for (name, ..) in *node {
            assert!(!is_host(name), "{name} belongs to host");
        }
        for (name, ..) in *host {
            assert!(is_host(name), "{name} belongs to node");
        }
        for (name, arguments, _) in *node {
            let exponent = arguments.iter().any(|(_, tag)| *tag == "Exponent");
            assert_eq!(exponent, EXPONENTS.contains(name), "the exponent of {name}");
        }
    }
}

/// Whether a method moves data between host and device, asks for the device, or marks gradients.
fn is_host(name: &str) -> bool {
    let ends = ["_from_data", "_into_data", "_device", "_detach", "_set_require_grad", "_is_require_grad"];
    let others = ["bool_argwhere", "has_ctc_loss_backward", "tr_execute"];
    others.contains(&name) || ends.iter().any(|end| name.ends_with(end)) && !name.ends_with("_to_device")
}

/// Prints the lines of the table as the sources have them, in their order.
#[test]
#[ignore = "prints the table; see the top of the file"]
fn print_the_table() {
    let traits = traits_in(&burn_backend().join("src/backend"));
    let tag = |types: &[(&str, &str)], wanted: &str| {
        let found = types.iter().find(|(_, known)| *known == wanted);
        found.map_or_else(|| format!("?{wanted}?"), |(tag, _)| tag.to_string())
    };
    let order = |name: &str| TABLE.iter().position(|(known, ..)| *known == name).unwrap_or(TABLE.len());
    let mut sources: Vec<_> = of_sources(&traits).into_iter().collect();
    sources.sort_by_key(|(name, _)| order(name));
    for (name, methods) in sources {
        println!("            trait {name} {{");
        for (side, host) in [("node", false), ("host", true)] {
            println!("                {side} {{");
            for method in methods.iter().filter(|method| is_host(&method.name) == host) {
                let arguments = method.arguments.iter().map(|(argument, wanted)| {
                    let exponent = wanted == "Scalar" && EXPONENTS.contains(&method.name.as_str());
                    let tag = if exponent { "Exponent".into() } else { tag(ARGUMENTS, wanted) };
                    format!("{argument}: {tag}")
                });
                let arguments = arguments.collect::<Vec<_>>().join(", ");
                println!(
                    "                    {}({arguments}) -> {};",
                    method.name,
                    tag(RESULTS, &method.result)
                );
            }
            println!("                }}");
        }
        println!("            }}");
    }
}
