//! The errors a user can meet: each is one sentence that says what happened and what to do.

/// Why a request to the engine failed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A model file is not what it claims to be: damaged, truncated or hostile.
    #[error("{0}")]
    ModelFormat(String),
    /// The model file is sound, but uses something this engine does not run.
    #[error("{0}")]
    Unsupported(String),
    /// An option or an argument is wrong.
    #[error("{0}")]
    BadInput(String),
    /// The prompt does not fit the context.
    #[error(
        "the prompt needs a context of {needed} tokens or more but this one holds {context}: shorten the prompt or ask for a longer context"
    )]
    ContextOverflow {
        /// Tokens the request needs.
        needed: usize,
        /// Tokens the context holds.
        context: usize,
    },
    /// No usable GPU adapter was found.
    #[error("{0}")]
    GpuUnavailable(String),
    /// A GPU buffer could not be had.
    #[error("{0}")]
    OutOfMemory(String),
    /// The GPU device was lost.
    #[error("the GPU device was lost ({0}): load the model again")]
    DeviceLost(String),
    /// The GPU refused a kernel or a command: a fault of the engine or the driver.
    #[error("the GPU refused {what}: {message} (please report this with the adapter's name)")]
    Gpu {
        /// The kernel or command.
        what: String,
        /// What the driver said.
        message: String,
    },
    /// Reading the model's bytes failed.
    #[error("{0}")]
    Io(String),
    /// The caller aborted the request.
    #[error("the request was aborted")]
    Aborted,
}

/// `Result` with the engine's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;
