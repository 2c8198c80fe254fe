//! What the page's worker sees of the engine. Thin: it turns JS values into the engine's and back, nothing else.

mod check;

use forerun::Error;
use wasm_bindgen::prelude::*;

/// What an engine error is in JS: an `Error` whose `name` is the kind, for a page that wants to act on it.
fn to_js(error: Error) -> JsValue {
    let name = match &error {
        Error::ModelFormat(_) => "ModelFormatError",
        Error::Unsupported(_) => "UnsupportedError",
        Error::BadInput(_) => "BadInputError",
        Error::ContextOverflow { .. } => "ContextOverflowError",
        Error::GpuUnavailable(_) => "GpuUnavailableError",
        Error::OutOfMemory(_) => "OutOfMemoryError",
        Error::DeviceLost(_) => "DeviceLostError",
        Error::Io(_) => "IoError",
        Error::Aborted => "AbortError",
        _ => "GpuError",
    };
    let js = js_sys::Error::new(&error.to_string());
    js.set_name(name);
    js.into()
}
