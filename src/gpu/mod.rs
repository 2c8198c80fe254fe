//! The only place that knows a GPU API.
//!
//! The engine needs little of one: make a buffer, upload, compile a kernel (many at once), bind, record a step once
//! and replay it, copy out, read back, and learn that the device was lost. There are two implementations with the same
//! items: `native` on wgpu and `web` on web-sys. Whatever waits for the GPU is async in both.

#[cfg(not(target_arch = "wasm32"))]
mod native;
#[cfg(target_arch = "wasm32")]
mod web;

#[cfg(not(target_arch = "wasm32"))]
pub use native::{Bindings, Buffer, Gpu, Kernel, Recording, Staging, breathe, now_ms};
#[cfg(target_arch = "wasm32")]
pub use web::{Bindings, Buffer, Gpu, Kernel, Recording, Staging, breathe, now_ms};

/// Which limits to ask the adapter for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LimitsRequest {
    /// What WebGPU promises everywhere: 128 MiB a binding, 256 MiB a buffer, 16 KiB of workgroup memory.
    Default,
    /// All that the adapter offers.
    #[default]
    Adapter,
}

/// What to ask of the GPU.
#[derive(Debug, Clone, Copy, Default)]
pub struct GpuOptions {
    /// Which limits to ask for.
    pub limits: LimitsRequest,
    /// Leaves out optional features (subgroups), so that the plain helpers run.
    pub plain: bool,
}

/// The adapter, and what the device made from it has.
#[derive(Debug, Clone, PartialEq)]
pub struct Adapter {
    /// The adapter's name as the API gives it, for people.
    pub name: String,
    /// The API behind it: `vulkan`, `metal`, `dx12` or `webgpu`.
    pub api: String,
    /// Whether the adapter is a program on the CPU.
    pub is_software: bool,
    /// Smallest subgroup size where subgroups are available to kernels.
    pub subgroup_size: Option<u32>,
    /// Whether kernels may call `dot4I8Packed`.
    pub packed_dot: bool,
    /// Bytes that one storage binding may span.
    pub max_binding: u64,
    /// Bytes that one buffer may hold.
    pub max_buffer: u64,
    /// Bytes of workgroup memory of one kernel.
    pub max_workgroup_memory: u32,
    /// Threads of one workgroup.
    pub max_workgroup_threads: u32,
}

/// Whether a kernel only reads a storage binding or also writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// `var<storage, read>`
    Read,
    /// `var<storage, read_write>`
    ReadWrite,
}

/// A kernel's complete WGSL text and what the host must know of it.
#[derive(Debug, Clone)]
pub struct KernelSource {
    /// The kernel's file name without its ending, for error messages.
    pub name: String,
    /// The text; its entry point is `main`.
    pub text: String,
    /// The storage bindings of group 0, in the order of their numbers from 0.
    pub access: Vec<Access>,
    /// Whether it uses subgroups: browsers want `enable subgroups;` in front of such a text, naga rejects the line.
    pub subgroups: bool,
}

/// A part of a buffer to bind. `offset` is a multiple of 256, `size` of 4.
#[derive(Debug, Clone, Copy)]
pub struct Range<'a> {
    /// The buffer.
    pub buffer: &'a Buffer,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub size: u64,
}

/// One dispatch of a step.
#[derive(Clone)]
pub struct Dispatch {
    /// The compiled kernel.
    pub kernel: Kernel,
    /// Its bindings.
    pub bindings: Bindings,
    /// Workgroups in x, y and z.
    pub workgroups: [u32; 3],
}

/// How many GPU objects have been made: a decode loop must not move these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Created {
    /// Buffers, staging buffers included.
    pub buffers: usize,
    /// Bind groups.
    pub bindings: usize,
    /// Compiled kernels.
    pub kernels: usize,
}
