//! A home of its own for each test, and the binary run in it.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use serde_json::Value;
use tempfile::TempDir;

/// The variable that every process of a test carries, so that what is left of them can be found.
const MARK: &str = "IPUCTL_TEST_HOME";

/// An empty home directory.
pub(crate) struct Home(TempDir);

/// What a finished command left.
#[derive(Debug)]
pub(crate) struct Done {
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

    /// Writes a file into the home.
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
            .env(MARK, self.0.path())
            .stdin(Stdio::null());
        command
    }

    /// Runs to the end.
    pub(crate) fn run(&self, arguments: &[&str]) -> Done {
        finish(self.command(arguments))
    }

    /// The JSON that a command prints with `-o json`.
    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let done = self.run(&[arguments, &["-o", "json"]].concat());
        serde_json::from_str(&done.out).unwrap_or_else(|error| panic!("{error}: {done:?}"))
    }

    /// Whether the ledger and the simulated Pod are empty.
    #[track_caller]
    pub(crate) fn assert_nothing_held(&self) {
        assert_eq!(self.json(&["partition", "list"]), serde_json::json!([]));
    }

    /// The command lines of processes of this test that still run.
    pub(crate) fn processes(&self) -> Vec<String> {
        let entry = format!("{MARK}={}", self.0.path().display());
        let found = std::fs::read_dir("/proc").unwrap().filter_map(|found| {
            let path = found.unwrap().path();
            let environment = std::fs::read(path.join("environ")).ok()?;
            let carries = environment
                .split(|byte| *byte == 0)
                .any(|found| found == entry.as_bytes());
            let command = std::fs::read(path.join("cmdline")).unwrap_or_default();
            let pid = path.file_name()?.to_string_lossy().into_owned();
            carries.then(|| format!("{pid} {}", String::from_utf8_lossy(&command).replace('\0', " ")))
        });
        found.collect()
    }
}

/// Runs a command to its end.
pub(crate) fn finish(mut command: Command) -> Done {
    let output = command.output().unwrap();
    Done {
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// A run that is under way, whose lines can be waited for.
pub(crate) struct Running {
    pub(crate) process: Child,
    lines: Receiver<String>,
    pub(crate) seen: Vec<String>,
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut process = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (to, lines) = channel();
        for pipe in [
            Box::new(process.stdout.take().unwrap()) as Box<dyn std::io::Read + Send>,
            Box::new(process.stderr.take().unwrap()),
        ] {
            let to = to.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                    let _ = to.send(line);
                }
            });
        }
        Self {
            process,
            lines,
            seen: Vec::new(),
        }
    }

    /// Waits for a line with `text` in it.
    #[track_caller]
    pub(crate) fn wait_for(&mut self, text: &str) -> String {
        while let Ok(line) = self.lines.recv() {
            self.seen.push(line.clone());
            if line.contains(text) {
                return line;
            }
        }
        panic!("no line with {text:?} in {:#?}", self.seen);
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

    /// Waits for the end; the exit code as a shell would say it.
    pub(crate) fn end(mut self) -> (i32, Vec<String>) {
        let status = self.process.wait().unwrap();
        self.seen.extend(self.lines.iter());
        let code = std::os::unix::process::ExitStatusExt::signal(&status)
            .map_or_else(|| status.code().unwrap(), |n| 128 + n);
        (code, self.seen)
    }
}

/// The path of an example of the repository.
pub(crate) fn example(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../examples")
        .join(name);
    path.to_str().unwrap().to_owned()
}

/// A job of one worker that runs `script` on a partition of `ipus` IPUs.
pub(crate) fn job(name: &str, ipus: u32, script: &str) -> String {
    let script = serde_json::to_string(script).unwrap();
    format!(
        "apiVersion: graphcore.ai/v1alpha1\nkind: IPUJob\nmetadata: {{name: {name}}}\nspec:\n  jobInstances: 1\n  \
         ipusPerJobInstance: \"{ipus}\"\n  workers: {{template: {{spec: {{containers: [{{name: main, image: none, \
         command: [sh, -c, {script}]}}]}}}}}}\n"
    )
}
