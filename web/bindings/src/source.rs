//! A model's bytes, read by the page: from a URL by byte ranges or from a file that a person chose.

use forerun::model::Source;
use forerun::{Error, Result};
use js_sys::{Function, Promise, Uint8Array};
use wasm_bindgen::{JsCast, JsValue};
use wasm_bindgen_futures::JsFuture;

/// Bytes behind a JS function `read(offset, length) -> Promise<Uint8Array>`, which gives at least one byte and at most
/// `length`.
pub struct JsSource {
    name: String,
    len: u64,
    read: Function,
}

impl JsSource {
    /// A source of `len` bytes.
    pub fn new(name: String, len: u64, read: Function) -> Self {
        Self { name, len, read }
    }

    async fn read_some(&self, offset: u64, length: usize) -> Result<Uint8Array> {
        let promise = self.read.call2(&JsValue::NULL, &(offset as f64).into(), &(length as f64).into());
        let promise: Promise = promise.map_err(|error| io(&error))?.unchecked_into();
        let bytes = JsFuture::from(promise).await.map_err(|error| io(&error))?;
        bytes.dyn_into::<Uint8Array>().map_err(|_| Error::Io(format!("{} gave no bytes: reload the page", self.name)))
    }
}

impl Source for JsSource {
    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> u64 {
        self.len
    }

    async fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let mut filled = 0;
        while filled < into.len() {
            let at = offset + filled as u64;
            let bytes = self.read_some(at, into.len() - filled).await?;
            let n = bytes.length() as usize;
            if n == 0 || n > into.len() - filled {
                return Err(Error::Io(format!("{} ends at byte {at}: check that it is complete", self.name)));
            }
            bytes.copy_to(&mut into[filled..filled + n]);
            filled += n;
        }
        Ok(())
    }
}

/// The page's own errors are sentences already; one that says it was aborted stays that.
fn io(error: &JsValue) -> Error {
    match error.dyn_ref::<js_sys::Error>() {
        Some(error) if error.name() == "AbortError" => Error::Aborted,
        Some(error) => Error::Io(error.message().into()),
        None => Error::Io(format!("reading the model failed ({error:?}): try again")),
    }
}
