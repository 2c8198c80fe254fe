//! The engine as a wasm module.
