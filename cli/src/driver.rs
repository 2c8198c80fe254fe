//! Keeps GPU drivers from writing to our stderr.

/// Mesa's Vulkan layer looks for a Wayland display and complains where `XDG_RUNTIME_DIR` is not set. A process cannot
/// safely change its own environment, so the program starts itself once more, in the same process, with it set; where
/// that fails it goes on with the complaint.
#[cfg(target_os = "linux")]
pub fn silence() {
    use std::os::unix::process::CommandExt;

    const NAME: &str = "XDG_RUNTIME_DIR";
    if std::env::var_os(NAME).is_some_and(|folder| std::path::Path::new(&folder).is_absolute()) {
        return;
    }
    let mut arguments = std::env::args_os();
    if let (Ok(program), Some(name)) = (std::env::current_exe(), arguments.next()) {
        let _ = std::process::Command::new(program).arg0(name).args(arguments).env(NAME, "/tmp").exec();
    }
}

/// Only Linux has that layer.
#[cfg(not(target_os = "linux"))]
pub fn silence() {}
