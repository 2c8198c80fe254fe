//! The GPU through web-sys, in the browser: a window or a worker.
//!
//! web-sys rather than wgpu, because wgpu's browser backend has neither asynchronous pipelines nor subgroups. A
//! recorded step is replayed by one call into `replay.js`.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use js_sys::{Array, JsNullable, JsString, Number, Object, Promise, Reflect, Uint8Array, Uint32Array};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::{JsFuture, spawn_local};

use super::{Access, Adapter, Created, Dispatch, GpuOptions, KernelSource, LimitsRequest, Range};
use crate::{Error, Result};

#[wasm_bindgen(module = "/src/gpu/replay.js")]
extern "C" {
    fn replay(
        pass: &web_sys::GpuComputePassEncoder,
        pipelines: &Array<web_sys::GpuComputePipeline>,
        groups: &Array<web_sys::GpuBindGroup>,
        workgroups: &Uint32Array,
    );
}

#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(js_namespace = performance, js_name = now)]
    fn performance_now() -> f64;
}

/// Milliseconds since some moment, for intervals.
pub fn now_ms() -> f64 {
    performance_now()
}

/// The limits that the engine can use more of than WebGPU's defaults.
const RAISED_LIMITS: [&str; 8] = [
    "maxBufferSize",
    "maxStorageBufferBindingSize",
    "maxStorageBuffersPerShaderStage",
    "maxComputeWorkgroupStorageSize",
    "maxComputeInvocationsPerWorkgroup",
    "maxComputeWorkgroupSizeX",
    "maxComputeWorkgroupSizeY",
    "maxComputeWorkgroupSizeZ",
];

/// Parts of the names of adapters that are programs on the CPU. Not every browser has `isFallbackAdapter`.
const SOFTWARE_NAMES: [&str; 5] = ["swiftshader", "llvmpipe", "lavapipe", "softpipe", "basic render"];

/// A device and its queue. Clones share both.
#[derive(Clone)]
pub struct Gpu {
    shared: Rc<Shared>,
}

struct Shared {
    device: web_sys::GpuDevice,
    queue: web_sys::GpuQueue,
    adapter: Adapter,
    troubles: Rc<Troubles>,
    /// Called by the browser as long as the device lives.
    _on_error: Closure<dyn FnMut(web_sys::GpuUncapturedErrorEvent)>,
    buffers: Cell<usize>,
    bindings: Cell<usize>,
    kernels: Cell<usize>,
}

/// What went wrong behind our back: the first of each.
#[derive(Default)]
struct Troubles {
    lost: RefCell<Option<String>>,
    refused: RefCell<Option<String>>,
}

impl Drop for Shared {
    /// A page may load one model after another: the garbage collector is too late for gigabytes.
    fn drop(&mut self) {
        self.device.set_onuncapturederror(None);
        self.device.destroy();
    }
}

/// A storage buffer on the GPU, zeroed when made. Clones are the same buffer.
#[derive(Debug, Clone)]
pub struct Buffer {
    inner: Rc<Owned>,
}

/// A buffer that gives its memory back as soon as nothing refers to it, without the garbage collector.
#[derive(Debug)]
struct Owned {
    buffer: web_sys::GpuBuffer,
    size: u64,
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.buffer.destroy();
    }
}

/// A compiled kernel.
#[derive(Clone)]
pub struct Kernel {
    pipeline: web_sys::GpuComputePipeline,
    layout: web_sys::GpuBindGroupLayout,
}

/// The buffers of one dispatch.
#[derive(Clone)]
pub struct Bindings {
    group: web_sys::GpuBindGroup,
    /// Keeps the buffers from being destroyed while they are bound.
    buffers: Vec<Rc<Owned>>,
}

/// Dispatches recorded once and replayed many times, in order, in one compute pass.
pub struct Recording {
    pipelines: Array<web_sys::GpuComputePipeline>,
    groups: Array<web_sys::GpuBindGroup>,
    workgroups: Uint32Array,
    len: usize,
    _buffers: Vec<Rc<Owned>>,
}

impl Recording {
    /// Number of dispatches in the recording.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing was recorded.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// A small buffer that the CPU can map. One read is outstanding at a time.
pub struct Staging {
    inner: Rc<Owned>,
    mapped: RefCell<Option<JsFuture<js_sys::Undefined>>>,
}

impl Buffer {
    /// Bytes in the buffer.
    pub fn size(&self) -> u64 {
        self.inner.size
    }

    /// The whole buffer, to bind.
    pub fn whole(&self) -> Range<'_> {
        Range { buffer: self, offset: 0, size: self.size() }
    }
}

impl Gpu {
    /// Opens the most powerful adapter.
    ///
    /// # Errors
    /// [`Error::GpuUnavailable`] where there is no adapter or it gives no device.
    pub async fn new(options: GpuOptions) -> Result<Gpu> {
        let gpu = navigator_gpu().ok_or_else(|| {
            Error::GpuUnavailable(
                "this browser gives the page no WebGPU: open the page over https or on localhost, in a current Chrome, \
                 Edge, Safari or Firefox, or choose the CPU"
                    .into(),
            )
        })?;
        let request = web_sys::GpuRequestAdapterOptions::new();
        request.set_power_preference(web_sys::GpuPowerPreference::HighPerformance);
        let adapter = gpu.request_adapter_with_options(&request).await;
        let adapter = adapter.map_err(|error| no_adapter(&text_of(&error)))?;
        let adapter = adapter.into_option().ok_or_else(|| no_adapter("the browser offers none"))?;
        let info = adapter.info();
        let name = name_of(&info);

        let has_subgroups = !options.plain && adapter.features().has("subgroups");
        let wanted = web_sys::GpuDeviceDescriptor::new();
        wanted.set_label("forerun");
        if has_subgroups {
            wanted.set_required_features(&[JsString::from("subgroups")]);
        }
        if options.limits == LimitsRequest::Adapter {
            wanted.set_required_limits(&raised_limits(&adapter.limits()));
        }
        let device = adapter.request_device_with_descriptor(&wanted).await.map_err(|error| {
            Error::GpuUnavailable(format!(
                "the adapter {name} gave no device ({}): reload the page or update the browser, or choose the CPU",
                text_of(&error)
            ))
        })?;

        let troubles = Rc::new(Troubles::default());
        let seen = troubles.clone();
        let lost = device.lost();
        spawn_local(async move {
            if let Ok(info) = lost.await {
                seen.lost.borrow_mut().get_or_insert(format!("{:?}: {}", info.reason(), info.message()));
            }
        });
        let seen = troubles.clone();
        let on_error = Closure::new(move |event: web_sys::GpuUncapturedErrorEvent| {
            seen.refused.borrow_mut().get_or_insert(event.error().message());
        });
        device.set_onuncapturederror(Some(on_error.as_ref().unchecked_ref()));

        let limits = device.limits();
        let lower = name.to_lowercase();
        let adapter = Adapter {
            is_software: info.is_fallback_adapter() || SOFTWARE_NAMES.iter().any(|software| lower.contains(software)),
            name,
            api: "webgpu".into(),
            subgroup_size: has_subgroups.then(|| info.subgroup_min_size()).filter(|size| *size > 0),
            packed_dot: gpu.wgsl_language_features().has("packed_4x8_integer_dot_product"),
            max_binding: limits.max_storage_buffer_binding_size() as u64,
            max_buffer: limits.max_buffer_size() as u64,
            max_workgroup_memory: limits.max_compute_workgroup_storage_size(),
            max_workgroup_threads: limits.max_compute_invocations_per_workgroup(),
        };
        let shared = Shared {
            queue: device.queue(),
            device,
            adapter,
            troubles,
            _on_error: on_error,
            buffers: Cell::new(0),
            bindings: Cell::new(0),
            kernels: Cell::new(0),
        };
        Ok(Gpu { shared: Rc::new(shared) })
    }

    /// The adapter and what the device has.
    pub fn adapter(&self) -> &Adapter {
        &self.shared.adapter
    }

    /// How many objects were made so far.
    pub fn created(&self) -> Created {
        Created {
            buffers: self.shared.buffers.get(),
            bindings: self.shared.bindings.get(),
            kernels: self.shared.kernels.get(),
        }
    }

    /// Makes a zeroed storage buffer of `size` bytes (rounded up to 4).
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] where the device has no room for it.
    pub async fn buffer(&self, label: &str, size: u64) -> Result<Buffer> {
        use web_sys::gpu_buffer_usage::{COPY_DST, COPY_SRC, STORAGE};
        let inner = self.allocate(label, size, STORAGE | COPY_SRC | COPY_DST).await?;
        Ok(Buffer { inner })
    }

    /// Makes a buffer of `size` bytes that the CPU can map.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] where the device has no room for it.
    pub async fn staging(&self, size: u64) -> Result<Staging> {
        use web_sys::gpu_buffer_usage::{COPY_DST, MAP_READ};
        let inner = self.allocate("staging", size, MAP_READ | COPY_DST).await?;
        Ok(Staging { inner, mapped: RefCell::new(None) })
    }

    async fn allocate(&self, label: &str, size: u64, usage: u32) -> Result<Rc<Owned>> {
        let size = size.max(4).next_multiple_of(4);
        let device = &self.shared.device;
        let refused = |why: String| {
            let mib = size.div_ceil(1 << 20);
            Error::OutOfMemory(format!(
                "the GPU has no room for {label} ({mib} MiB: {why}): ask for a shorter context or load a smaller model"
            ))
        };
        let descriptor = web_sys::GpuBufferDescriptor::new_with_f64(size as f64, usage);
        descriptor.set_label(label);
        device.push_error_scope(web_sys::GpuErrorFilter::OutOfMemory);
        device.push_error_scope(web_sys::GpuErrorFilter::Validation);
        let made = device.create_buffer(&descriptor);
        // Both scopes close before the first wait: others may be opened meanwhile, and scopes are a stack.
        let scopes = [JsFuture::from(device.pop_error_scope()), JsFuture::from(device.pop_error_scope())];
        let buffer = made.map_err(|error| refused(text_of(&error)))?;
        let owned = Rc::new(Owned { buffer, size });
        for scope in scopes {
            let caught = scope.await;
            self.check_lost()?;
            if let Some(error) = caught_error(caught) {
                return Err(refused(error));
            }
        }
        self.shared.buffers.set(self.shared.buffers.get() + 1);
        Ok(owned)
    }

    /// Writes `bytes` (a multiple of 4 of them) into `buffer` from byte `offset` (a multiple of 4) on.
    pub fn write(&self, buffer: &Buffer, offset: u64, bytes: &[u8]) {
        let queue = &self.shared.queue;
        if let Err(error) = queue.write_buffer_with_f64_and_u8_slice(&buffer.inner.buffer, offset as f64, bytes) {
            self.refuse(format!("a write of {} bytes at {offset}: {}", bytes.len(), text_of(&error)));
        }
    }

    /// Waits until all that was submitted and written so far has been done.
    ///
    /// # Errors
    /// [`Error::DeviceLost`].
    pub async fn finish(&self) -> Result<()> {
        let done = self.shared.queue.on_submitted_work_done().await;
        self.check()?;
        done.map(|_| ()).map_err(|error| Error::Gpu { what: "a wait".into(), message: text_of(&error) })
    }

    /// Compiles kernels, as many at once as the driver allows.
    ///
    /// # Errors
    /// [`Error::Gpu`] with the kernel's name where one does not compile.
    pub async fn compile(&self, sources: &[KernelSource]) -> Result<Vec<Kernel>> {
        let device = &self.shared.device;
        device.push_error_scope(web_sys::GpuErrorFilter::Validation);
        let started: Vec<_> = sources.iter().map(|source| self.start_compiling(source)).collect();
        let scope = JsFuture::from(device.pop_error_scope());
        let mut finished = Vec::with_capacity(started.len());
        // Each is waited for, even behind an error: a promise that nobody waits for would be reported to the page.
        for (source, compiling) in sources.iter().zip(started) {
            finished.push(match compiling {
                Ok(compiling) => compiling.finish(source).await,
                Err(error) => Err(refused_kernel(source, &text_of(&error))),
            });
        }
        let caught = scope.await;
        self.check_lost()?;
        let kernels = finished.into_iter().collect::<Result<Vec<_>>>()?;
        if let Some(message) = caught_error(caught) {
            return Err(Error::Gpu { what: "a kernel".into(), message });
        }
        self.shared.kernels.set(self.shared.kernels.get() + kernels.len());
        Ok(kernels)
    }

    fn start_compiling(&self, source: &KernelSource) -> Result<Compiling, JsValue> {
        let device = &self.shared.device;
        // On the first line, so that the lines of errors stay those of the kernel's file.
        let enable = if source.subgroups { "enable subgroups; " } else { "" };
        let module = web_sys::GpuShaderModuleDescriptor::new(&format!("{enable}{}", source.text));
        module.set_label(&source.name);
        let module = device.create_shader_module(&module);
        let entries: Vec<_> = source
            .access
            .iter()
            .enumerate()
            .map(|(binding, access)| {
                let buffer = web_sys::GpuBufferBindingLayout::new();
                buffer.set_type(match access {
                    Access::Read => web_sys::GpuBufferBindingType::ReadOnlyStorage,
                    Access::ReadWrite => web_sys::GpuBufferBindingType::Storage,
                });
                let compute = web_sys::gpu_shader_stage::COMPUTE;
                let entry = web_sys::GpuBindGroupLayoutEntry::new(binding as u32, compute);
                entry.set_buffer(&buffer);
                entry
            })
            .collect();
        let layout = web_sys::GpuBindGroupLayoutDescriptor::new(&entries);
        layout.set_label(&source.name);
        let layout = device.create_bind_group_layout(&layout)?;
        let pipeline_layout = web_sys::GpuPipelineLayoutDescriptor::new(&[JsNullable::wrap(layout.clone())]);
        let pipeline_layout = device.create_pipeline_layout(&pipeline_layout);
        let stage = web_sys::GpuProgrammableStage::new(&module);
        stage.set_entry_point("main");
        let pipeline = web_sys::GpuComputePipelineDescriptor::new(&pipeline_layout, &stage);
        pipeline.set_label(&source.name);
        let pipeline = JsFuture::from(device.create_compute_pipeline_async(&pipeline));
        Ok(Compiling { module, layout, pipeline })
    }

    /// Binds `ranges` to the bindings 0, 1, … of `kernel`.
    pub fn bind(&self, kernel: &Kernel, ranges: &[Range<'_>]) -> Bindings {
        let entries: Vec<_> = ranges
            .iter()
            .enumerate()
            .map(|(binding, range)| {
                let part = web_sys::GpuBufferBinding::new(&range.buffer.inner.buffer);
                part.set_offset_f64(range.offset as f64);
                part.set_size_f64(range.size as f64);
                web_sys::GpuBindGroupEntry::new_with_gpu_buffer_binding(binding as u32, &part)
            })
            .collect();
        self.shared.bindings.set(self.shared.bindings.get() + 1);
        let descriptor = web_sys::GpuBindGroupDescriptor::new(&entries, &kernel.layout);
        Bindings {
            group: self.shared.device.create_bind_group(&descriptor),
            buffers: ranges.iter().map(|range| range.buffer.inner.clone()).collect(),
        }
    }

    /// Records dispatches to replay.
    pub fn record(&self, dispatches: Vec<Dispatch>) -> Recording {
        let (pipelines, groups) = (Array::new_typed(), Array::new_typed());
        let mut workgroups = Vec::with_capacity(dispatches.len() * 3);
        let mut buffers = Vec::new();
        let len = dispatches.len();
        for dispatch in dispatches {
            pipelines.push(&dispatch.kernel.pipeline);
            groups.push(&dispatch.bindings.group);
            workgroups.extend(dispatch.workgroups);
            buffers.extend(dispatch.bindings.buffers);
        }
        let workgroups = Uint32Array::from(workgroups.as_slice());
        Recording { pipelines, groups, workgroups, len, _buffers: buffers }
    }

    /// Submits recordings in order and, behind them, a copy of the start of a buffer into a staging buffer, whose
    /// bytes [`Gpu::read_staging`] then waits for.
    pub fn submit(&self, recordings: &[&Recording], copy: Option<(&Buffer, &Staging)>) {
        let encoder = self.shared.device.create_command_encoder();
        let pass = encoder.begin_compute_pass();
        for recording in recordings {
            replay(&pass, &recording.pipelines, &recording.groups, &recording.workgroups);
        }
        pass.end();
        if let Some((buffer, staging)) = copy {
            self.copy(&encoder, buffer, 0, staging);
        }
        self.shared.queue.submit(&[encoder.finish()]);
        if let Some((_, staging)) = copy {
            staging.start_mapping();
        }
    }

    /// Waits for the bytes that the last [`Gpu::submit`] with this staging buffer copied.
    ///
    /// # Errors
    /// [`Error::DeviceLost`].
    pub async fn read_staging(&self, staging: &Staging) -> Result<Vec<u8>> {
        let refused = |message: String| Error::Gpu { what: "a readback".into(), message };
        // It stays where it is until it is done: a read that was dropped is made again before the buffer's next use.
        let mapped = std::future::poll_fn(|context| match &mut *staging.mapped.borrow_mut() {
            Some(mapped) => Pin::new(mapped).poll(context).map(Some),
            None => Poll::Ready(None),
        });
        let mapped = mapped.await.ok_or_else(|| refused("nothing was submitted to read".into()))?;
        staging.mapped.take();
        if mapped.is_err() {
            // The loss that made mapping fail is announced just behind the failure.
            let _ = Promise::resolve(&JsValue::UNDEFINED).await;
        }
        self.check()?;
        mapped.map_err(|error| refused(text_of(&error)))?;
        let view = staging.inner.buffer.get_mapped_range().map_err(|error| refused(text_of(&error)))?;
        let bytes = Uint8Array::new(&view).to_vec();
        staging.inner.buffer.unmap();
        Ok(bytes)
    }

    /// Reads `size` bytes of `buffer` from byte `offset` on; both are multiples of 4. Makes a staging buffer, so it is
    /// for tests and loading, not for the loop.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] or [`Error::DeviceLost`].
    pub async fn read(&self, buffer: &Buffer, offset: u64, size: u64) -> Result<Vec<u8>> {
        let staging = self.staging(size).await?;
        let encoder = self.shared.device.create_command_encoder();
        self.copy(&encoder, buffer, offset, &staging);
        self.shared.queue.submit(&[encoder.finish()]);
        staging.start_mapping();
        self.read_staging(&staging).await
    }

    /// Copies as much of `buffer` from `offset` on as `staging` holds.
    fn copy(&self, encoder: &web_sys::GpuCommandEncoder, buffer: &Buffer, offset: u64, staging: &Staging) {
        let copied = encoder.copy_buffer_to_buffer_with_f64_and_f64_and_f64(
            &buffer.inner.buffer,
            offset as f64,
            &staging.inner.buffer,
            0.0,
            staging.inner.size as f64,
        );
        if let Err(error) = copied {
            self.refuse(text_of(&error));
        }
    }

    /// Whether the device is still there.
    ///
    /// # Errors
    /// [`Error::DeviceLost`] where it is not.
    pub fn check_lost(&self) -> Result<()> {
        match &*self.shared.troubles.lost.borrow() {
            Some(reason) => Err(Error::DeviceLost(reason.clone())),
            None => Ok(()),
        }
    }

    /// [`Gpu::check_lost`], and whether the GPU did all that it was told: the browser reports a refused command only
    /// in an event.
    fn check(&self) -> Result<()> {
        self.check_lost()?;
        match &*self.shared.troubles.refused.borrow() {
            Some(message) => Err(Error::Gpu { what: "a command".into(), message: message.clone() }),
            None => Ok(()),
        }
    }

    fn refuse(&self, message: String) {
        self.shared.troubles.refused.borrow_mut().get_or_insert(message);
    }
}

impl Staging {
    fn start_mapping(&self) {
        let mapped = self.inner.buffer.map_async(web_sys::gpu_map_mode::READ);
        *self.mapped.borrow_mut() = Some(JsFuture::from(mapped));
    }
}

/// A kernel on its way.
struct Compiling {
    module: web_sys::GpuShaderModule,
    layout: web_sys::GpuBindGroupLayout,
    pipeline: JsFuture<web_sys::GpuComputePipeline>,
}

impl Compiling {
    async fn finish(self, source: &KernelSource) -> Result<Kernel> {
        match self.pipeline.await {
            Ok(pipeline) => Ok(Kernel { pipeline, layout: self.layout }),
            Err(error) => {
                let fault = first_fault(&self.module).await;
                Err(refused_kernel(source, &fault.unwrap_or_else(|| text_of(&error))))
            }
        }
    }
}

/// The first error in a kernel's text, with its line.
async fn first_fault(module: &web_sys::GpuShaderModule) -> Option<String> {
    let info = module.get_compilation_info().await.ok()?;
    let is_error =
        |message: &web_sys::GpuCompilationMessage| message.type_() == web_sys::GpuCompilationMessageType::Error;
    let message = info.messages().iter().find(is_error)?;
    Some(format!("line {}: {}", message.line_num(), message.message()))
}

fn refused_kernel(source: &KernelSource, message: &str) -> Error {
    Error::Gpu { what: format!("kernel {}", source.name), message: message.to_owned() }
}

fn no_adapter(why: &str) -> Error {
    Error::GpuUnavailable(format!(
        "no GPU adapter was found ({why}): turn on hardware acceleration in the browser's settings, update the graphics \
         driver, or choose the CPU"
    ))
}

/// `navigator.gpu`, in a window or in a worker.
fn navigator_gpu() -> Option<web_sys::Gpu> {
    let navigator = Reflect::get(&js_sys::global(), &"navigator".into()).ok()?;
    let gpu = Reflect::get(&navigator, &"gpu".into()).ok()?;
    (!gpu.is_undefined() && !gpu.is_null()).then(|| gpu.unchecked_into())
}

/// What the browser tells about an adapter; some of it is empty in every browser.
fn name_of(info: &web_sys::GpuAdapterInfo) -> String {
    let mut parts = Vec::new();
    for part in [info.vendor(), info.architecture(), info.device(), info.description()] {
        if !part.is_empty() && !parts.contains(&part) {
            parts.push(part);
        }
    }
    if parts.is_empty() { "unnamed".into() } else { parts.join(" ") }
}

fn raised_limits(offered: &web_sys::GpuSupportedLimits) -> Object<Number> {
    let limits = Object::new();
    for name in RAISED_LIMITS {
        if let Ok(value) = Reflect::get(offered, &name.into())
            && value.as_f64().is_some()
        {
            // Setting a property of a fresh plain object cannot fail.
            let _ = Reflect::set(&limits, &name.into(), &value);
        }
    }
    limits.unchecked_into()
}

/// The error that a scope caught. A scope that itself fails belongs to a lost device, which is checked elsewhere.
fn caught_error(caught: Result<JsNullable<web_sys::GpuError>, JsValue>) -> Option<String> {
    caught.ok()?.into_option().map(|error| error.message())
}

/// What a thrown value says.
fn text_of(error: &JsValue) -> String {
    match error.dyn_ref::<js_sys::Error>() {
        Some(error) => String::from(error.message()),
        None => error.as_string().unwrap_or_else(|| format!("{error:?}")),
    }
}

/// Lets others run between two pieces of work on the CPU: the worker hears its messages.
pub async fn breathe() {
    let timer = Promise::new(&mut |resolve, _| {
        let set_timeout = Reflect::get(&js_sys::global(), &JsValue::from_str("setTimeout"));
        if let Ok(set_timeout) = set_timeout.map(js_sys::Function::from) {
            let _ = set_timeout.call1(&JsValue::UNDEFINED, &resolve);
        }
    });
    let _ = JsFuture::from(timer).await;
}
