//! The GPU through web-sys, in the browser.
