//! What the page's worker sees of the engine. Thin: it turns JS values into the engine's and back, nothing else.
//! Options and answers are JSON, since they are few and small; text pieces and model bytes are passed as they are.

mod check;
mod engine;
mod source;

use forerun::Error;
use wasm_bindgen::prelude::*;

#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(js_namespace = console, js_name = error)]
    fn console_error(message: &str);
}

/// Says on the console where a fault of the engine was, since a trap alone does not.
#[wasm_bindgen(start)]
fn start() {
    std::panic::set_hook(Box::new(|fault| console_error(&format!("forerun: {fault}"))));
}

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

/// Reads `the options` or `the request` that the page gave as JSON.
fn parse<T: serde::de::DeserializeOwned>(what: &str, json: &str) -> Result<T, JsValue> {
    serde_json::from_str(json).map_err(|error| {
        to_js(Error::BadInput(format!("{what} cannot be read ({error}): give what is expected there")))
    })
}

fn to_json<T: serde::Serialize>(value: &T) -> Result<String, JsValue> {
    serde_json::to_string(value).map_err(|error| js_sys::Error::new(&error.to_string()).into())
}
