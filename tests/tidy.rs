//! The invariants of the source tree, as data. They mostly say what is deliberately absent.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Lines that a file of source or text may have.
const MAX_LINES: usize = 1000;
/// Bytes that a file in git may have.
const MAX_BYTES: u64 = 300_000;
/// Bytes of all fixtures.
const MAX_FIXTURES: u64 = 1_000_000;
/// Files that tools write whole.
const GENERATED: &[&str] = &["Cargo.lock", "fuzz/Cargo.lock", "web/package-lock.json"];
/// Files whose bytes are what matters.
const FIXTURES: &str = "tests/fixtures/";

/// Where code may depend on the processor: the GPU's two implementations, and the CPU's threads and vectors.
const KNOWS_THE_TARGET: &[&str] = &["src/gpu/", "src/parallel.rs", "src/cpu/simd.rs", "tests/tidy.rs"];

/// Kernels without a twin of their own name in `src/cpu/`, and why.
const TWINLESS: &[(&str, &str)] = &[
    ("begin", "moves tokens and computes no number"),
    ("logprob_parts", "src/cpu/logprobs.rs has both kernels of log-probabilities"),
    ("match", "src/cpu/draft.rs has both kernels of a draft"),
    ("gate_up", "matmul and silu_quantize in one"),
    ("project", "matmul and the residual in one"),
    ("qkv", "matmul and rope_cache in one"),
];

/// What no file says, and why. The words are cut so that this file does not say them either.
const FORBIDDEN: &[(&str, &str, &str)] = &[
    ("todo", "!(", "work left to do belongs to the changelog or nowhere"),
    ("dbg", "!(", "it is for debugging"),
    ("unimplemented", "!(", "an error says what does not run"),
    ("pypi", ".org", "clients know their registry"),
    ("files.python", "hosted", "clients know their registry"),
    ("registry.npm", "js", "clients know their registry"),
    ("index.crates", ".io", "clients know their registry"),
    ("static.crates", ".io", "clients know their registry"),
    ("deb.debian", ".org", "clients know their registry"),
    ("/work", "/", "no path of one machine"),
    ("<<<<", "<<<", "a merge is not finished"),
];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Every file in git, relative to the root.
fn tracked() -> Vec<String> {
    let listed = Command::new("git").args(["ls-files", "-z"]).current_dir(root()).output();
    let listed = listed.expect("git lists the files of the source tree: run this in a clone, with git installed");
    assert!(listed.status.success(), "git cannot list the files: {}", String::from_utf8_lossy(&listed.stderr));
    let names = String::from_utf8(listed.stdout).unwrap();
    let present = names.split_terminator('\0').filter(|name| root().join(name).is_file());
    present.map(str::to_owned).collect()
}

fn read(name: &str) -> String {
    let bytes = std::fs::read(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The text files that people write, and their text.
fn written() -> Vec<(String, String)> {
    let by_hand = |name: &String| !GENERATED.contains(&name.as_str()) && !name.starts_with(FIXTURES);
    tracked().into_iter().filter(by_hand).map(|name| (name.clone(), read(&name))).collect()
}

fn is_rust(name: &str) -> bool {
    name.ends_with(".rs")
}

/// Fails with every fault, not only the first.
fn check(faults: Vec<String>) {
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
}

#[test]
fn files_are_short() {
    let long = written().into_iter().filter(|(_, text)| text.lines().count() > MAX_LINES);
    check(long.map(|(name, text)| format!("{name} has {} lines: split it", text.lines().count())).collect());
}

#[test]
fn files_are_small() {
    let sizes: Vec<(String, u64)> =
        tracked().into_iter().map(|name| (name.clone(), root().join(name).metadata().unwrap().len())).collect();
    let fixtures: u64 = sizes.iter().filter(|(name, _)| name.starts_with(FIXTURES)).map(|(_, size)| size).sum();
    assert!(fixtures < MAX_FIXTURES, "the fixtures have {fixtures} bytes");
    let large = sizes.iter().filter(|(_, size)| *size > MAX_BYTES);
    check(large.map(|(name, size)| format!("{name} has {size} bytes: fetch or make it instead")).collect());
}

#[test]
fn nothing_built_is_in_git() {
    let is_built = |name: &String| {
        let ending = Path::new(name).extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        let is_model = matches!(ending, "gguf" | "safetensors") && !name.starts_with("tests/fixtures/models/");
        is_model || ending == "wasm" || name.starts_with("web/pkg/") || name.contains("node_modules/")
    };
    check(tracked().into_iter().filter(is_built).map(|name| format!("{name} is built or fetched")).collect());
}

#[test]
fn modules_say_what_they_are_for() {
    let silent = written().into_iter().filter(|(name, text)| is_rust(name) && !text.starts_with("//! "));
    check(silent.map(|(name, _)| format!("{name} does not open with a `//!` comment")).collect());
}

#[test]
fn the_target_is_known_in_few_places() {
    let allowed = |name: &str| KNOWS_THE_TARGET.iter().any(|place| name.starts_with(place));
    let asks = |text: &str| text.contains("target_arch") || text.contains("target_family");
    let knowing = written().into_iter().filter(|(name, text)| is_rust(name) && !allowed(name) && asks(text));
    check(knowing.map(|(name, _)| format!("{name} asks for the target: that belongs into src/gpu")).collect());
}

#[test]
fn nothing_forbidden_is_said() {
    let mut faults = Vec::new();
    for (name, text) in written() {
        for (start, end, why) in FORBIDDEN {
            let word = format!("{start}{end}");
            faults.extend(text.contains(&word).then(|| format!("{name} says `{word}`: {why}")));
        }
    }
    check(faults);
}

#[test]
fn kernels_have_an_equation_a_twin_and_a_row() {
    let table = read("kernels/README.md");
    let mut faults = Vec::new();
    let mut names = Vec::new();
    for (file, text) in written() {
        let Some(kernel) = file.strip_prefix("kernels/").and_then(|name| name.strip_suffix(".wgsl")) else { continue };
        if !text.starts_with("// ") {
            faults.push(format!("{file} does not open with its equation"));
        }
        if kernel.contains('/') {
            continue; // shared helpers
        }
        let has_twin = root().join(format!("src/cpu/{kernel}.rs")).exists();
        let is_listed = TWINLESS.iter().any(|(name, _)| *name == kernel);
        if has_twin == is_listed {
            faults.push(format!("{file} needs either a twin, src/cpu/{kernel}.rs, or a reason in TWINLESS"));
        }
        if !table.contains(&format!("\n| `{kernel}` |")) {
            faults.push(format!("{file} has no row in kernels/README.md"));
        }
        names.push(kernel.to_owned());
    }
    let stale = TWINLESS.iter().filter(|(name, _)| !names.iter().any(|kernel| kernel == name));
    faults.extend(stale.map(|(name, _)| format!("TWINLESS names {name}, which is no kernel")));
    assert!(!names.is_empty());
    check(faults);
}

/// Messages are one sentence behind `error: `, without a dot at the end.
#[test]
fn errors_end_without_a_dot() {
    let mut faults = Vec::new();
    for (name, text) in written() {
        if !is_rust(&name) || !name.contains("src/") {
            continue;
        }
        for (from, _) in text.match_indices("Error::").chain(text.match_indices("#[error(")) {
            // The first string behind it, if one comes before the statement ends.
            let statement = text[from..].split([';', '}']).next().unwrap_or_default();
            let message = statement.split('"').nth(1).unwrap_or_default();
            if message.len() > 20 && message.ends_with('.') {
                faults.push(format!("{name}: a message ends with a dot: {message}"));
            }
        }
    }
    check(faults);
}

fn cargo(arguments: &[&str]) -> Vec<u8> {
    let done = Command::new(env!("CARGO")).args(arguments).current_dir(root()).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    done.stdout
}

/// What cargo says of the workspace's crates.
fn metadata(arguments: &[&str]) -> serde_json::Value {
    let always = ["metadata", "--offline", "--locked", "--format-version", "1"];
    serde_json::from_slice(&cargo(&[&always, arguments].concat())).unwrap()
}

/// `ARCHITECTURE.md` has a word on every file of the program and on every dependency.
#[test]
fn the_architecture_names_everything() {
    let page = read("ARCHITECTURE.md");
    let mut faults = Vec::new();
    for name in tracked() {
        let path = Path::new(&name);
        let file = path.file_name().unwrap().to_str().unwrap();
        let is_twin = || root().join(format!("kernels/{}.wgsl", path.file_stem().unwrap().to_str().unwrap())).exists();
        let is_program = ["src/", "cli/src/", "web/src/"].iter().any(|folder| name.starts_with(folder));
        if !is_program || file == "mod.rs" || (name.starts_with("src/cpu/") && is_twin()) {
            continue;
        }
        // Files of the engine stand there with their folder.
        let shown = name.strip_prefix("src/").unwrap_or(file);
        faults.extend((!page.contains(&format!("`{shown}`"))).then(|| format!("ARCHITECTURE.md does not name {name}")));
    }
    for member in metadata(&["--no-deps"])["packages"].as_array().unwrap() {
        for dependency in member["dependencies"].as_array().unwrap() {
            let name = dependency["name"].as_str().unwrap();
            // As a whole word of the table.
            let is_named = page.split(['|', ',', ' ']).any(|word| word.trim() == name);
            let fault = || format!("ARCHITECTURE.md does not say what {name} is for");
            faults.extend((dependency["path"].is_null() && !is_named).then(fault));
        }
    }
    faults.dedup();
    check(faults);
}

/// Every crate of this machine's build has a licence that `deny.toml` allows.
#[test]
fn licences_are_allowed() {
    let deny = read("deny.toml");
    let list = deny.split("allow = [").nth(1).and_then(|rest| rest.split(']').next()).unwrap();
    let allowed: Vec<&str> = list.split('"').skip(1).step_by(2).collect();
    // One alternative is enough; of what is joined by AND, each part needs one.
    let is_fine = |licence: &str| {
        let plain = licence.replace(['(', ')'], "").replace('/', " OR ");
        plain.split(" AND ").all(|part| part.split(" OR ").any(|one| allowed.contains(&one.trim())))
    };

    let version = String::from_utf8(cargo(&["-vV"])).unwrap();
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
    // Offline: the crates of this build have been fetched, those of other systems need not have been.
    let metadata = metadata(&["--filter-platform", host]);
    let crates = metadata["packages"].as_array().unwrap();
    assert!(crates.len() > 50);
    let refused = crates.iter().filter(|found| !is_fine(found["license"].as_str().unwrap_or_default()));
    check(refused.map(|found| format!("{} has the licence {}", found["name"], found["license"])).collect());
}
