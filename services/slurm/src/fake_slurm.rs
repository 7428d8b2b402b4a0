//! Commands of Slurm whose output a test decides.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::slurm_commands::Slurm;

/// Returns commands in a directory that run these scripts of `sh`, by name.
pub(crate) fn fake_slurm(directory: &Path, commands: &[(&str, &str)]) -> Slurm {
    for (name, script) in commands {
        write_program(&directory.join(name), script);
    }
    Slurm::in_directory(directory)
}

/// Writes a script in a process of its own. A process that another test starts meanwhile would otherwise
/// inherit the open file, which cannot be executed then.
fn write_program(path: &Path, script: &str) {
    let mut writer = Command::new("/bin/sh")
        .args(["-c", r#"cat >"$0" && chmod 755 "$0""#])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let text = format!("#!/bin/sh\n{script}\n");
    writer.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(writer.wait().unwrap().success());
}
