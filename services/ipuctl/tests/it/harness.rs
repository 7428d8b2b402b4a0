//! Runs the binary in a temporary home directory for each test.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use serde_json::Value;
use tempfile::TempDir;

/// Environment variable of all processes of a test, by which leftover processes are found.
const MARKER: &str = "IPUCTL_TEST_HOME";

/// A temporary home directory.
pub(crate) struct Home(TempDir);

/// Exit code and output of a finished command.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Home {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a file into the home directory.
    pub(crate) fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ipuctl"));
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy();
            if name.starts_with("IPU") || name.starts_with("OMPI_") || name.starts_with("XDG_") {
                command.env_remove(&*name);
            }
        }
        command
            .args(arguments)
            .env("HOME", self.0.path())
            .env(MARKER, self.0.path())
            .stdin(Stdio::null());
        command
    }

    /// Runs a command to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> Finished {
        finish(self.command(arguments))
    }

    /// Returns the JSON document that a command prints with `-o json`.
    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let done = self.run(&[arguments, &["-o", "json"]].concat());
        serde_json::from_str(&done.out).unwrap_or_else(|error| panic!("{error}: {done:?}"))
    }

    /// Asserts that the ledger and the simulated IPU-POD are empty.
    #[track_caller]
    pub(crate) fn assert_nothing_held(&self) {
        assert_eq!(self.json(&["partition", "list"]), serde_json::json!([]));
    }

    /// Returns pid and command line of the running processes of this test.
    pub(crate) fn processes(&self) -> Vec<String> {
        let entry = format!("{MARKER}={}", self.0.path().display());
        let processes = std::fs::read_dir("/proc").unwrap().filter_map(|process| {
            let path = process.unwrap().path();
            let environment = std::fs::read(path.join("environ")).ok()?;
            let is_marked = environment
                .split(|byte| *byte == 0)
                .any(|variable| variable == entry.as_bytes());
            let command = std::fs::read(path.join("cmdline")).unwrap_or_default();
            let pid = path.file_name()?.to_string_lossy().into_owned();
            is_marked.then(|| format!("{pid} {}", String::from_utf8_lossy(&command).replace('\0', " ")))
        });
        processes.collect()
    }
}

/// Runs a command to its end.
pub(crate) fn finish(mut command: Command) -> Finished {
    let output = command.output().unwrap();
    Finished {
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// A running command, whose output can be waited for.
pub(crate) struct Running {
    pub(crate) process: Child,
    lines: Receiver<String>,
    pub(crate) output: Vec<String>,
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut process = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, lines) = channel();
        for pipe in [
            Box::new(process.stdout.take().unwrap()) as Box<dyn std::io::Read + Send>,
            Box::new(process.stderr.take().unwrap()),
        ] {
            let sender = sender.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                    let _ = sender.send(line);
                }
            });
        }
        Self {
            process,
            lines,
            output: Vec::new(),
        }
    }

    /// Waits for a line that contains `text`.
    #[track_caller]
    pub(crate) fn wait_for(&mut self, text: &str) -> String {
        while let Ok(line) = self.lines.recv() {
            self.output.push(line.clone());
            if line.contains(text) {
                return line;
            }
        }
        panic!("no line with {text:?} in {:#?}", self.output);
    }

    pub(crate) fn signal(&self, signal: &str) {
        let pid = self.process.id().to_string();
        assert!(
            Command::new("kill")
                .args([signal, &pid])
                .status()
                .unwrap()
                .success()
        );
    }

    /// Waits for the end. Returns the exit code as of a shell, and all lines.
    pub(crate) fn end(mut self) -> (i32, Vec<String>) {
        let status = self.process.wait().unwrap();
        self.output.extend(self.lines.iter());
        let code = std::os::unix::process::ExitStatusExt::signal(&status)
            .map_or_else(|| status.code().unwrap(), |n| 128 + n);
        (code, self.output)
    }
}

/// Returns the path of an example of the repository.
pub(crate) fn example(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../examples")
        .join(name);
    path.to_str().unwrap().to_owned()
}

/// Returns a job with one worker that runs `script` on a partition of `ipus` IPUs.
pub(crate) fn job(name: &str, ipus: u32, script: &str) -> String {
    let script = serde_json::to_string(script).unwrap();
    format!(
        "apiVersion: graphcore.ai/v1alpha1\nkind: IPUJob\nmetadata: {{name: {name}}}\nspec:\n  jobInstances: 1\n  \
         ipusPerJobInstance: \"{ipus}\"\n  workers: {{template: {{spec: {{containers: [{{name: main, image: none, \
         command: [sh, -c, {script}]}}]}}}}}}\n"
    )
}
