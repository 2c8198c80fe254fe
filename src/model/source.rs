//! Where a model's bytes come from: a file, memory, or (in the browser) byte ranges of a URL.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Mutex;

use crate::{Error, Result};

/// Bytes that can be read at any offset.
///
/// The trait is used through generics only and asks for no `Send`, so that a browser's `fetch` can stand behind it.
#[allow(async_fn_in_trait)]
pub trait Source {
    /// What a person would call it: a path or a URL, for messages.
    fn name(&self) -> &str;

    /// Length in bytes.
    fn len(&self) -> u64;

    /// Whether there is nothing to read.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `into` with the bytes from `offset` on. Reading past the end is an [`Error::Io`].
    async fn read(&self, offset: u64, into: &mut [u8]) -> Result<()>;
}

/// A file on disk.
#[derive(Debug)]
pub struct FileSource {
    name: String,
    len: u64,
    // Seeking and reading are two calls; the lock makes them one, without a positioned read for each platform.
    file: Mutex<File>,
}

impl FileSource {
    /// Opens the file at `path` for reading.
    ///
    /// # Errors
    /// [`Error::Io`] when the file is missing, is a folder, or may not be read.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let name = path.display().to_string();
        let cannot =
            |error: std::io::Error| Error::Io(format!("cannot open {name} ({error}): check the path and its rights"));
        // Asked before it is opened: opening a pipe waits for whoever writes into it.
        let about = std::fs::metadata(path).map_err(cannot)?;
        if about.is_dir() {
            return Err(Error::Io(format!("{name} is a folder: name the .gguf file inside it")));
        }
        if !about.is_file() {
            return Err(Error::Io(format!("{name} is no file that can be read from any place: name a .gguf file")));
        }
        let file = File::open(path).map_err(cannot)?;
        let len = about.len();
        Ok(Self { name, len, file: Mutex::new(file) })
    }
}

impl Source for FileSource {
    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> u64 {
        self.len
    }

    async fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let mut file = self.file.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        file.seek(SeekFrom::Start(offset)).and_then(|_| file.read_exact(into)).map_err(|error| {
            Error::Io(format!(
                "cannot read {} bytes at offset {offset} of {} ({error}): check that the file is complete",
                into.len(),
                self.name
            ))
        })
    }
}

/// Bytes in memory, mostly for tests.
#[derive(Debug, Clone, Default)]
pub struct BytesSource {
    name: String,
    bytes: Vec<u8>,
}

impl BytesSource {
    /// A source that reads from `bytes`, called `name` in messages.
    pub fn new(name: impl Into<String>, bytes: Vec<u8>) -> Self {
        Self { name: name.into(), bytes }
    }
}

impl Source for BytesSource {
    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    async fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let piece = usize::try_from(offset)
            .ok()
            .and_then(|start| self.bytes.get(start..start.checked_add(into.len())?))
            .ok_or_else(|| {
                Error::Io(format!(
                    "cannot read {} bytes at offset {offset} of {}, which has {}: check that the file is complete",
                    into.len(),
                    self.name,
                    self.bytes.len()
                ))
            })?;
        into.copy_from_slice(piece);
        Ok(())
    }
}
