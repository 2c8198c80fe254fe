//! A check of the browser's GPU without a model: what the adapter is, and whether every operation of the engine's GPU
//! layer does what it should. The browser tests run it, and a person with a strange machine can.

use forerun::gpu::{Access, Created, Dispatch, Gpu, GpuOptions, KernelSource, LimitsRequest};
use forerun::{Error, Result};
use serde::Serialize;
use wasm_bindgen::prelude::*;

/// What was found.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    adapter: String,
    api: String,
    is_software: bool,
    subgroup_size: Option<u32>,
    packed_dot: bool,
    max_binding: u64,
    max_buffer: u64,
    max_workgroup_memory: u32,
    max_workgroup_threads: u32,
    /// Each check's name, and what went wrong or null.
    checks: Vec<(&'static str, Option<String>)>,
}

/// Runs the check and returns its report as JSON. `limits` is `default` or `adapter`; `plain` leaves subgroups out.
#[wasm_bindgen(js_name = checkGpu)]
pub async fn check_gpu(limits: String, plain: bool) -> Result<String, JsValue> {
    let limits = if limits == "default" { LimitsRequest::Default } else { LimitsRequest::Adapter };
    let gpu = Gpu::new(GpuOptions { limits, plain }).await.map_err(crate::to_js)?;
    let told = |result: Result<()>| result.err().map(|error| error.to_string());
    let adapter = gpu.adapter().clone();
    let mut checks = vec![
        ("round trip", told(round_trip(&gpu).await)),
        ("replay", told(replay(&gpu).await)),
        ("windows in flight", told(windows(&gpu).await)),
        ("error in a kernel", told(broken_kernel(&gpu).await)),
        ("too large a buffer", told(too_large(&gpu).await)),
    ];
    if adapter.packed_dot {
        checks.push(("packed dot product", told(packed_dot(&gpu).await)));
    }
    if adapter.subgroup_size.is_some() {
        checks.push(("subgroups", told(subgroups(&gpu).await)));
    }
    // Last, since a device that refused a command says so from then on.
    checks.push(("refused command", told(refused_command(&gpu).await)));
    let report = Report {
        adapter: adapter.name,
        api: adapter.api,
        is_software: adapter.is_software,
        subgroup_size: adapter.subgroup_size,
        packed_dot: adapter.packed_dot,
        max_binding: adapter.max_binding,
        max_buffer: adapter.max_buffer,
        max_workgroup_memory: adapter.max_workgroup_memory,
        max_workgroup_threads: adapter.max_workgroup_threads,
        checks,
    };
    crate::to_json(&report)
}

fn expect<T: PartialEq + std::fmt::Debug>(what: &str, got: T, want: T) -> Result<()> {
    if got == want {
        return Ok(());
    }
    Err(Error::Gpu { what: what.to_owned(), message: format!("it gave {got:?} instead of {want:?}") })
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect()
}

fn bytes_of(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// A kernel whose only binding is `x: array<u32>`, read and written, in workgroups of 64.
fn source(name: &str, body: &str) -> KernelSource {
    let text = format!(
        "@group(0) @binding(0) var<storage, read_write> x: array<u32>;\n\n@compute @workgroup_size(64)\nfn \
         main(@builtin(global_invocation_id) id: vec3u) {{\n    let i = id.x;\n{body}\n}}\n"
    );
    KernelSource { name: name.into(), text, access: vec![Access::ReadWrite], subgroups: false }
}

async fn compile_one(gpu: &Gpu, source: KernelSource) -> Result<forerun::gpu::Kernel> {
    let mut kernels = gpu.compile(&[source]).await?;
    kernels.pop().ok_or_else(|| Error::Gpu { what: "a compilation".into(), message: "it gave no kernel".into() })
}

async fn round_trip(gpu: &Gpu) -> Result<()> {
    let buffer = gpu.buffer("check", 1024).await?;
    expect("a new buffer", words(&gpu.read(&buffer, 0, 1024).await?), vec![0; 256])?;
    let data: Vec<u32> = (0..64).map(|i| i * 2_654_435_761_u32.wrapping_mul(i)).collect();
    gpu.write(&buffer, 256, &bytes_of(&data));
    gpu.finish().await?;
    expect("a round trip", words(&gpu.read(&buffer, 256, 256).await?), data)
}

async fn replay(gpu: &Gpu) -> Result<()> {
    let double = source("double", "    x[i] = x[i] * 2u;");
    let increment = source("increment", "    x[i] = x[i] + 1u;");
    let kernels = gpu.compile(&[double, increment]).await?;
    let buffer = gpu.buffer("check", 64 * 4).await?;
    let dispatches = kernels.iter().map(|kernel| Dispatch {
        kernel: kernel.clone(),
        bindings: gpu.bind(kernel, &[buffer.whole()]),
        workgroups: [1, 1, 1],
    });
    let step = gpu.record(dispatches.collect());
    expect("a recording's length", step.len(), 2)?;
    let staging = gpu.staging(64 * 4).await?;
    let before = gpu.created();
    gpu.submit(&[&step, &step], None);
    gpu.submit(&[&step], Some((&buffer, &staging)));
    // ((0 * 2 + 1) * 2 + 1) * 2 + 1: the order of dispatches matters.
    expect("three steps", words(&gpu.read_staging(&staging).await?), vec![7; 64])?;
    expect::<Created>("the count of objects", gpu.created(), before)
}

async fn windows(gpu: &Gpu) -> Result<()> {
    let kernel = compile_one(gpu, source("increment", "    x[i] = x[i] + 1u;")).await?;
    let buffer = gpu.buffer("check", 64 * 4).await?;
    let bindings = gpu.bind(&kernel, &[buffer.whole()]);
    let step = gpu.record(vec![Dispatch { kernel, bindings, workgroups: [1, 1, 1] }]);
    let stagings = [gpu.staging(4).await?, gpu.staging(4).await?];
    gpu.submit(&[&step], Some((&buffer, &stagings[0])));
    for window in 0..8_usize {
        gpu.submit(&[&step], Some((&buffer, &stagings[(window + 1) % 2])));
        let seen = words(&gpu.read_staging(&stagings[window % 2]).await?);
        expect("a window", seen, vec![window as u32 + 1])?;
    }
    gpu.read_staging(&stagings[0]).await.map(|_| ())
}

async fn broken_kernel(gpu: &Gpu) -> Result<()> {
    let fine = source("fine", "    x[i] = 1u;");
    let broken = source("broken", "    x[i] = nonsense;");
    match gpu.compile(&[fine, broken]).await {
        Err(Error::Gpu { what, message }) => {
            expect("the name in an error", what.as_str(), "kernel broken")?;
            expect("the line in an error", message.starts_with("line 6: "), true)
        }
        Err(other) => Err(other),
        Ok(_) => Err(Error::Gpu { what: "a broken kernel".into(), message: "it compiled".into() }),
    }
}

async fn too_large(gpu: &Gpu) -> Result<()> {
    match gpu.buffer("much", gpu.adapter().max_buffer + 4).await {
        Err(Error::OutOfMemory(_)) => Ok(()),
        Err(other) => Err(other),
        Ok(_) => Err(Error::Gpu { what: "too large a buffer".into(), message: "it was made".into() }),
    }
}

async fn run_once(gpu: &Gpu, source: KernelSource, input: &[u32]) -> Result<Vec<u32>> {
    let kernel = compile_one(gpu, source).await?;
    let buffer = gpu.buffer("check", 64 * 4).await?;
    gpu.write(&buffer, 0, &bytes_of(input));
    let bindings = gpu.bind(&kernel, &[buffer.whole()]);
    let step = gpu.record(vec![Dispatch { kernel, bindings, workgroups: [1, 1, 1] }]);
    gpu.submit(&[&step], None);
    Ok(words(&gpu.read(&buffer, 0, 64 * 4).await?))
}

async fn packed_dot(gpu: &Gpu) -> Result<()> {
    let source = source("packed_dot", "    x[i] = bitcast<u32>(dot4I8Packed(x[i], 0x7f80ff01u));");
    // (1, -1, -128, 127) with (-3, 2, 1, -1): -3 - 2 - 128 - 127.
    let result = run_once(gpu, source, &[0xff01_02fd; 64]).await?;
    expect("dot4I8Packed", result[0] as i32, -260)
}

async fn subgroups(gpu: &Gpu) -> Result<()> {
    let source = source("subgroups", "    x[i] = subgroupAdd(x[i]) / subgroupAdd(1u);");
    let source = KernelSource { subgroups: true, ..source };
    expect("subgroupAdd", run_once(gpu, source, &[5; 64]).await?, vec![5; 64])
}

async fn refused_command(gpu: &Gpu) -> Result<()> {
    let buffer = gpu.buffer("check", 256).await?;
    gpu.write(&buffer, 252, &[0; 8]);
    match gpu.finish().await {
        Err(Error::Gpu { .. }) => Ok(()),
        Err(other) => Err(other),
        Ok(()) => Err(Error::Gpu { what: "a write behind the end".into(), message: "nobody complained".into() }),
    }
}
