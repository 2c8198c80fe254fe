//! Build steps that `./x` calls. They are a program rather than installed tools, so that the version of wasm-bindgen
//! that writes the glue is always the one that the engine was compiled with.
//!
//! `cargo run --release -p xtask -- bindgen WASM OUTDIR` writes `forerun.js`, `forerun.d.ts` and `forerun_bg.wasm`.

use std::path::Path;
use std::process::ExitCode;

use wasm_bindgen_cli_support::Bindgen;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args[..] {
        ["bindgen", wasm, out_dir] => bindgen(Path::new(wasm), Path::new(out_dir)),
        _ => Err("usage: xtask bindgen WASM OUTDIR".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::from(2)
        }
    }
}

/// Writes the JS glue of a compiled module as an ES module that a bundler and a plain server can both serve.
fn bindgen(wasm: &Path, out_dir: &Path) -> Result<(), String> {
    let generate = || -> Result<(), anyhow::Error> {
        let mut bindgen = Bindgen::new();
        bindgen.web(true)?.input_path(wasm).out_name("forerun").typescript(true).omit_default_module_path(false);
        bindgen.remove_name_section(true).remove_producers_section(true);
        bindgen.generate(out_dir)
    };
    generate().map_err(|error| format!("{}: {error:#}", wasm.display()))
}
