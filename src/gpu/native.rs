//! The GPU through wgpu: Vulkan, Metal or Direct3D 12.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::{Access, Adapter, Created, Dispatch, GpuOptions, KernelSource, LimitsRequest, Range};
use crate::{Error, Result};

/// A device and its queue. Clones share both.
#[derive(Clone)]
pub struct Gpu {
    shared: Arc<Shared>,
}

struct Shared {
    device: wgpu::Device,
    queue: wgpu::Queue,
    adapter: Adapter,
    lost: Arc<Mutex<Option<String>>>,
    buffers: AtomicUsize,
    bindings: AtomicUsize,
    kernels: AtomicUsize,
}

/// A storage buffer on the GPU, zeroed when made. Clones are the same buffer.
#[derive(Debug, Clone)]
pub struct Buffer {
    inner: wgpu::Buffer,
}

/// A compiled kernel.
#[derive(Clone)]
pub struct Kernel {
    pipeline: wgpu::ComputePipeline,
    layout: wgpu::BindGroupLayout,
}

/// The buffers of one dispatch.
#[derive(Clone)]
pub struct Bindings {
    group: wgpu::BindGroup,
}

/// Dispatches recorded once and replayed many times, in order, in one compute pass.
pub struct Recording {
    dispatches: Vec<Dispatch>,
}

impl Recording {
    /// Number of dispatches in the recording.
    pub fn len(&self) -> usize {
        self.dispatches.len()
    }

    /// Whether nothing was recorded.
    pub fn is_empty(&self) -> bool {
        self.dispatches.is_empty()
    }
}

/// A small buffer that the CPU can map. One read is outstanding at a time.
pub struct Staging {
    inner: wgpu::Buffer,
    mapped: Arc<Mutex<Mapping>>,
}

/// How far the mapping of a staging buffer is.
enum Mapping {
    /// Nothing was submitted that would fill it.
    Idle,
    Pending,
    Done(Result<(), wgpu::BufferAsyncError>),
}

impl Staging {
    fn start_mapping(&self) {
        set(&self.mapped, Mapping::Pending);
        let mapped = self.mapped.clone();
        self.inner.map_async(wgpu::MapMode::Read, .., move |result| set(&mapped, Mapping::Done(result)));
    }

    /// The mapping's state; where it is done, the buffer is idle from then on.
    fn take_mapping(&self) -> Mapping {
        let mut mapped = self.mapped.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        match *mapped {
            Mapping::Pending => Mapping::Pending,
            _ => std::mem::replace(&mut mapped, Mapping::Idle),
        }
    }
}

impl Buffer {
    /// Bytes in the buffer.
    pub fn size(&self) -> u64 {
        self.inner.size()
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
        let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
        descriptor.backends = wgpu::Backends::PRIMARY;
        let instance = wgpu::Instance::new(descriptor);
        let request = wgpu::RequestAdapterOptions {
            power_preference: wgpu::PowerPreference::HighPerformance,
            ..Default::default()
        };
        let adapter = instance.request_adapter(&request).await.map_err(|error| {
            Error::GpuUnavailable(format!(
                "no GPU adapter was found ({error}): install a Vulkan, Metal or Direct3D 12 driver, or choose the CPU \
                 with --backend cpu"
            ))
        })?;
        let offered = adapter.limits();
        let limits = match options.limits {
            LimitsRequest::Default => wgpu::Limits::default(),
            LimitsRequest::Adapter => offered,
        };
        let info = adapter.get_info();
        let wanted = if options.plain { wgpu::Features::empty() } else { wgpu::Features::SUBGROUP };
        let features = adapter.features() & wanted;
        let device = wgpu::DeviceDescriptor {
            label: Some("forerun"),
            required_features: features,
            required_limits: limits.clone(),
            ..Default::default()
        };
        let (device, queue) = adapter.request_device(&device).await.map_err(|error| {
            Error::GpuUnavailable(format!(
                "the adapter {} gave no device ({error}): update its driver, or choose the CPU with --backend cpu",
                info.name
            ))
        })?;
        let lost = Arc::new(Mutex::new(None));
        let seen = lost.clone();
        device.set_device_lost_callback(move |reason, message| {
            set(&seen, Some(format!("{reason:?}: {message}")));
        });
        let adapter = Adapter {
            name: info.name.clone(),
            api: info.backend.to_string(),
            is_software: info.device_type == wgpu::DeviceType::Cpu,
            subgroup_size: features.contains(wgpu::Features::SUBGROUP).then_some(info.subgroup_min_size),
            packed_dot: true,
            max_binding: limits.max_storage_buffer_binding_size,
            max_buffer: limits.max_buffer_size,
            max_workgroup_memory: limits.max_compute_workgroup_storage_size,
            max_workgroup_threads: limits.max_compute_invocations_per_workgroup,
        };
        let zero = || AtomicUsize::new(0);
        let shared = Shared { device, queue, adapter, lost, buffers: zero(), bindings: zero(), kernels: zero() };
        Ok(Gpu { shared: Arc::new(shared) })
    }

    /// The adapter and what the device has.
    pub fn adapter(&self) -> &Adapter {
        &self.shared.adapter
    }

    /// How many objects were made so far.
    pub fn created(&self) -> Created {
        Created {
            buffers: self.shared.buffers.load(Ordering::Relaxed),
            bindings: self.shared.bindings.load(Ordering::Relaxed),
            kernels: self.shared.kernels.load(Ordering::Relaxed),
        }
    }

    /// Makes a zeroed storage buffer of `size` bytes (rounded up to 4).
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] where the device has no room for it.
    pub async fn buffer(&self, label: &str, size: u64) -> Result<Buffer> {
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
        let inner = self.allocate(label, size, usage).await?;
        Ok(Buffer { inner })
    }

    /// Makes a buffer of `size` bytes that the CPU can map.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] where the device has no room for it.
    pub async fn staging(&self, size: u64) -> Result<Staging> {
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        let inner = self.allocate("staging", size, usage).await?;
        Ok(Staging { inner, mapped: Arc::new(Mutex::new(Mapping::Idle)) })
    }

    async fn allocate(&self, label: &str, size: u64, usage: wgpu::BufferUsages) -> Result<wgpu::Buffer> {
        let size = size.max(4).next_multiple_of(4);
        let device = &self.shared.device;
        let refused = |why: String| {
            let mib = size.div_ceil(1 << 20);
            Error::OutOfMemory(format!(
                "the GPU has no room for {label} ({mib} MiB: {why}): ask for a shorter context or load a smaller model"
            ))
        };
        let memory = device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let validation = device.push_error_scope(wgpu::ErrorFilter::Validation);
        let buffer = device.create_buffer(&wgpu::BufferDescriptor {
            label: Some(label),
            size,
            usage,
            mapped_at_creation: false,
        });
        let (validation, memory) = (validation.pop().await, memory.pop().await);
        self.check_lost()?;
        if let Some(error) = validation.or(memory) {
            return Err(refused(error.to_string()));
        }
        self.shared.buffers.fetch_add(1, Ordering::Relaxed);
        Ok(buffer)
    }

    /// Writes `bytes` (a multiple of 4 of them) into `buffer` from byte `offset` (a multiple of 4) on.
    pub fn write(&self, buffer: &Buffer, offset: u64, bytes: &[u8]) {
        self.shared.queue.write_buffer(&buffer.inner, offset, bytes);
    }

    /// Waits until all that was submitted and written so far has been done.
    ///
    /// # Errors
    /// [`Error::DeviceLost`].
    pub async fn finish(&self) -> Result<()> {
        self.shared.queue.submit([]);
        self.wait()
    }

    /// Compiles kernels, as many at once as the driver allows.
    ///
    /// # Errors
    /// [`Error::Gpu`] with the kernel's name where one does not compile.
    pub async fn compile(&self, sources: &[KernelSource]) -> Result<Vec<Kernel>> {
        use rayon::prelude::*;
        let kernels = sources.par_iter().map(|source| self.compile_one(source)).collect::<Result<Vec<_>>>()?;
        self.shared.kernels.fetch_add(kernels.len(), Ordering::Relaxed);
        Ok(kernels)
    }

    fn compile_one(&self, source: &KernelSource) -> Result<Kernel> {
        let device = &self.shared.device;
        let scope = device.push_error_scope(wgpu::ErrorFilter::Validation);
        let text = wgpu::ShaderModuleDescriptor {
            label: Some(&source.name),
            source: wgpu::ShaderSource::Wgsl(source.text.as_str().into()),
        };
        // The checks would add a counter to every loop and a branch to every division, which keeps drivers from
        // unrolling the loops over registers.
        let checks = wgpu::ShaderRuntimeChecks { bounds_checks: true, ..wgpu::ShaderRuntimeChecks::unchecked() };
        // SAFETY: the kernels are this crate's own texts: their loops end and they divide by constants that are not 0.
        #[allow(unsafe_code)]
        let module = unsafe { device.create_shader_module_trusted(text, checks) };
        let entries: Vec<_> = source
            .access
            .iter()
            .enumerate()
            .map(|(binding, access)| wgpu::BindGroupLayoutEntry {
                binding: binding as u32,
                visibility: wgpu::ShaderStages::COMPUTE,
                ty: wgpu::BindingType::Buffer {
                    ty: wgpu::BufferBindingType::Storage { read_only: *access == Access::Read },
                    has_dynamic_offset: false,
                    min_binding_size: None,
                },
                count: None,
            })
            .collect();
        let layout = device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
            label: Some(&source.name),
            entries: &entries,
        });
        let pipeline_layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: Some(&source.name),
            bind_group_layouts: &[Some(&layout)],
            immediate_size: 0,
        });
        let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(&source.name),
            layout: Some(&pipeline_layout),
            module: &module,
            entry_point: Some("main"),
            compilation_options: wgpu::PipelineCompilationOptions {
                zero_initialize_workgroup_memory: false,
                ..Default::default()
            },
            cache: None,
        });
        match pollster::block_on(scope.pop()) {
            Some(error) => Err(Error::Gpu { what: format!("kernel {}", source.name), message: error.to_string() }),
            None => Ok(Kernel { pipeline, layout }),
        }
    }

    /// Binds `ranges` to the bindings 0, 1, … of `kernel`.
    pub fn bind(&self, kernel: &Kernel, ranges: &[Range<'_>]) -> Bindings {
        let entries: Vec<_> = ranges
            .iter()
            .enumerate()
            .map(|(binding, range)| wgpu::BindGroupEntry {
                binding: binding as u32,
                resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                    buffer: &range.buffer.inner,
                    offset: range.offset,
                    size: std::num::NonZeroU64::new(range.size),
                }),
            })
            .collect();
        self.shared.bindings.fetch_add(1, Ordering::Relaxed);
        let descriptor = wgpu::BindGroupDescriptor { label: None, layout: &kernel.layout, entries: &entries };
        Bindings { group: self.shared.device.create_bind_group(&descriptor) }
    }

    /// Records dispatches to replay.
    pub fn record(&self, dispatches: Vec<Dispatch>) -> Recording {
        Recording { dispatches }
    }

    /// Submits recordings in order and, behind them, a copy of the start of a buffer into a staging buffer, whose
    /// bytes [`Gpu::read_staging`] then waits for.
    pub fn submit(&self, recordings: &[&Recording], copy: Option<(&Buffer, &Staging)>) {
        let mut encoder = self.shared.device.create_command_encoder(&Default::default());
        {
            let mut pass = encoder.begin_compute_pass(&Default::default());
            for dispatch in recordings.iter().flat_map(|recording| &recording.dispatches) {
                let [x, y, z] = dispatch.workgroups;
                pass.set_pipeline(&dispatch.kernel.pipeline);
                pass.set_bind_group(0, &dispatch.bindings.group, &[]);
                pass.dispatch_workgroups(x, y, z);
            }
        }
        if let Some((buffer, staging)) = copy {
            encoder.copy_buffer_to_buffer(&buffer.inner, 0, &staging.inner, 0, staging.inner.size());
        }
        self.shared.queue.submit([encoder.finish()]);
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
        loop {
            match staging.take_mapping() {
                Mapping::Done(Ok(())) => break,
                Mapping::Done(Err(error)) => {
                    self.check_lost()?;
                    return Err(refused(error.to_string()));
                }
                Mapping::Idle => return Err(refused("nothing was submitted to read".into())),
                Mapping::Pending => {
                    self.check_lost()?;
                    // Other windows may be in flight behind this one: wait in short turns, not for all of them.
                    let _ = self.shared.device.poll(wgpu::PollType::Poll);
                    std::thread::yield_now();
                }
            }
        }
        let bytes = match staging.inner.get_mapped_range(..) {
            Ok(view) => view.to_vec(),
            Err(error) => return Err(refused(error.to_string())),
        };
        staging.inner.unmap();
        Ok(bytes)
    }

    /// Reads `size` bytes of `buffer` from byte `offset` on; both are multiples of 4. Makes a staging buffer, so it is
    /// for tests and loading, not for the loop.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] or [`Error::DeviceLost`].
    pub async fn read(&self, buffer: &Buffer, offset: u64, size: u64) -> Result<Vec<u8>> {
        let staging = self.staging(size).await?;
        let mut encoder = self.shared.device.create_command_encoder(&Default::default());
        encoder.copy_buffer_to_buffer(&buffer.inner, offset, &staging.inner, 0, size);
        self.shared.queue.submit([encoder.finish()]);
        staging.start_mapping();
        self.read_staging(&staging).await
    }

    fn wait(&self) -> Result<()> {
        let polled = self.shared.device.poll(wgpu::PollType::wait_indefinitely());
        self.check_lost()?;
        match polled {
            Ok(_) => Ok(()),
            Err(error) => Err(Error::Gpu { what: "a wait".into(), message: error.to_string() }),
        }
    }

    /// Whether the device is still there.
    ///
    /// # Errors
    /// [`Error::DeviceLost`] where it is not.
    pub fn check_lost(&self) -> Result<()> {
        match &*self.shared.lost.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) {
            Some(reason) => Err(Error::DeviceLost(reason.clone())),
            None => Ok(()),
        }
    }
}

fn set<T>(slot: &Mutex<T>, value: T) {
    *slot.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = value;
}

/// Milliseconds since some fixed moment.
pub fn now_ms() -> f64 {
    use std::sync::OnceLock;
    use std::time::Instant;
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_secs_f64() * 1e3
}

/// Lets others run between two pieces of work on the CPU: in a page its messages, here nobody, since threads do.
pub async fn breathe() {}
