//! A bed: one Slurm with its files and daemons.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::accounting::create_database;
use crate::concurrency_limit::BedSlot;
use crate::daemon::{Daemon, RunningDaemon};
use crate::error::BedError;
use crate::files::write_files;
use crate::forward::forward;
use crate::options::BedOptions;
use crate::poll::poll;
use crate::sandbox::Sandbox;
use crate::slurm_conf::{CONTROLLER_RUN, CONTROLLERS, NODES, render_hosts};

/// Lines of each log in an error.
const LOG_LINES: usize = 12;

/// A running Slurm. All its processes end, and its files are removed, on drop.
#[derive(Debug)]
pub struct Bed {
    daemons: BTreeMap<Daemon, RunningDaemon>,
    sandbox: Sandbox,
    directory: PathBuf,
    _slot: Option<BedSlot>,
}

impl Bed {
    /// Starts a Slurm with its files in `directory`, and waits until all nodes are idle.
    pub(crate) fn start(
        directory: &Path,
        options: &BedOptions,
        slot: Option<BedSlot>,
    ) -> Result<Self, BedError> {
        write_files(directory, options)?;
        let sandbox = Sandbox::start(directory)?;
        let mut bed = Self {
            daemons: BTreeMap::new(),
            sandbox,
            directory: directory.to_owned(),
            _slot: slot,
        };
        bed.launch(Daemon::Munged)?;
        bed.await_condition("munged answers", |bed| bed.run("munge", &["-n"]).success)?;
        if options.has_accounting {
            bed.start_accounting()?;
        }
        let controllers = match options.has_backup {
            true => CONTROLLERS.map(|host| Daemon::SlurmctldOn(host.into())).to_vec(),
            false => vec![Daemon::Slurmctld],
        };
        if options.has_backup {
            let script = format!(
                "mkdir {CONTROLLER_RUN}; cat >hosts <<'END'\n{}END\nmount --bind hosts /etc/hosts",
                render_hosts()
            );
            bed.succeed("sh", &["-euc", &script]);
        }
        for (index, daemon) in controllers.into_iter().enumerate() {
            bed.launch(daemon)?;
            bed.await_condition("slurmctld answers", |bed| {
                bed.run("scontrol", &["ping"]).stdout.matches(" UP").count() > index
            })?;
        }
        for daemon in Daemon::slurmds() {
            bed.launch(daemon)?;
        }
        bed.await_condition("all nodes are idle", |bed| {
            let states = bed.node_states();
            states.len() == NODES.len() && states.iter().all(|state| state == "idle")
        })?;
        Ok(bed)
    }

    /// Returns the directory of the bed as this process sees it.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the path at which this process sees a path of the bed, such as `/run/munge`.
    #[must_use]
    pub fn path(&self, inside: &str) -> PathBuf {
        self.sandbox.path(inside)
    }

    /// Forwards connections to a port on the loopback interface of the bed to `target` on that of this
    /// machine.
    ///
    /// # Panics
    ///
    /// If a program of the bed listens at the port.
    pub fn forward(&self, port: u16, target: u16) {
        if let Err(error) = forward(self.sandbox.network(), port, target) {
            panic!("cannot listen at port {port} of the bed: {error}");
        }
    }

    /// Starts a daemon that was stopped or killed.
    ///
    /// # Panics
    ///
    /// If it runs already, or cannot be started.
    pub fn start_daemon(&mut self, daemon: Daemon) {
        let name = daemon.to_string();
        if let Err(error) = self.launch(daemon) {
            panic!("{name}: {error}");
        }
    }

    /// Starts a program of the test inside the bed, such as a proxy; its output goes to `log/<name>.out`.
    ///
    /// # Panics
    ///
    /// If a program of this name runs already, or it cannot be started.
    pub fn start_program(&mut self, name: &str, words: &[&str]) -> Daemon {
        let daemon = Daemon::Program(name.into());
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        if let Err(error) = self.launch_command(daemon.clone(), &words) {
            panic!("{error}");
        }
        daemon
    }

    /// Sends SIGKILL to a daemon and waits until it has ended.
    ///
    /// # Panics
    ///
    /// If it was not started.
    pub fn kill_daemon(&mut self, daemon: &Daemon) {
        self.end_daemon(daemon, "KILL");
    }

    /// Sends SIGTERM to a daemon and waits until it has ended.
    ///
    /// # Panics
    ///
    /// If it was not started.
    pub fn stop_daemon(&mut self, daemon: &Daemon) {
        self.end_daemon(daemon, "TERM");
    }

    /// Stops slurmctld by SIGTERM, starts it, and waits until it answers.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn restart_slurmctld(&mut self) {
        self.stop_daemon(&Daemon::Slurmctld);
        self.start_daemon(Daemon::Slurmctld);
        self.wait_until("slurmctld answers", || {
            self.run("scontrol", &["ping"]).stdout.contains(" UP")
        });
    }

    /// Returns the ends of all logs.
    #[must_use]
    pub fn logs(&self) -> String {
        let mut names: Vec<PathBuf> = fs::read_dir(self.directory.join("log"))
            .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
            .unwrap_or_default();
        names.sort();
        let mut text = String::new();
        for path in names {
            let content = fs::read(&path).unwrap_or_default();
            let content = String::from_utf8_lossy(&content);
            let lines: Vec<&str> = content.lines().collect();
            let end = lines[lines.len().saturating_sub(LOG_LINES)..].join("\n");
            text.push_str(&format!("--- {}\n{end}\n", path.display()));
        }
        text
    }

    pub(crate) const fn sandbox(&self) -> &Sandbox {
        &self.sandbox
    }

    /// Starts the database and slurmdbd, and registers the cluster: without that, slurmctld does not start
    /// with limits.
    fn start_accounting(&mut self) -> Result<(), BedError> {
        create_database(&self.sandbox)?;
        self.launch(Daemon::Mariadbd)?;
        self.await_condition("the database answers", |bed| {
            bed.run("mariadb", &["-e", "create database if not exists slurm_acct_db"])
                .success
        })?;
        self.launch(Daemon::Slurmdbd)?;
        self.await_condition("slurmdbd answers", |bed| {
            bed.run("sacctmgr", &["-i", "add", "cluster", "testbed"]).success
        })
    }

    fn launch(&mut self, daemon: Daemon) -> Result<(), BedError> {
        let words = daemon
            .command_line()
            .ok_or_else(|| BedError::step(format!("start {daemon}"), "it is a program of the test"))?;
        self.launch_command(daemon, &words)
    }

    fn launch_command(&mut self, daemon: Daemon, words: &[String]) -> Result<(), BedError> {
        if self.daemons.contains_key(&daemon) {
            return Err(BedError::step(format!("start {daemon}"), "it runs already"));
        }
        let running = RunningDaemon::start(&self.sandbox, &self.directory, &daemon, words)?;
        self.daemons.insert(daemon, running);
        Ok(())
    }

    fn end_daemon(&mut self, daemon: &Daemon, signal: &str) {
        let Some(mut running) = self.daemons.remove(daemon) else {
            panic!("{daemon} does not run");
        };
        if let Err(error) = running.signal(&self.sandbox, signal) {
            panic!("{error}");
        }
        running.wait();
    }

    /// Polls a condition of the start, and fails as soon as a daemon has ended.
    fn await_condition(&mut self, condition: &str, holds: impl Fn(&Self) -> bool) -> Result<(), BedError> {
        let mut detail = String::from("the time is over");
        let held = poll(|| {
            if holds(self) {
                return Some(true);
            }
            for (daemon, running) in &mut self.daemons {
                if running.has_ended() {
                    detail = format!("{daemon} has ended");
                    return Some(false);
                }
            }
            None
        });
        if held == Some(true) {
            return Ok(());
        }
        Err(BedError::NotReady {
            condition: condition.into(),
            detail,
            logs: self.logs(),
        })
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        // The first process of the sandbox ends after this; the directory is not in use by this process.
        for running in self.daemons.values_mut() {
            let _ = running.signal(&self.sandbox, "KILL");
        }
        for running in self.daemons.values_mut() {
            running.wait();
        }
        if !std::thread::panicking() {
            // The directory is a mount point in the sandbox only.
            let _ = fs::remove_dir_all(&self.directory);
        }
    }
}
