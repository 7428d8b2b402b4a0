//! Options of a bed, which its test chooses.

use std::path::{Path, PathBuf};

/// The directory of a bed as its own processes see it.
pub const BED: &str = "/run/slurm-bed";

/// A program that Slurm runs on an event, by its key in `slurm.conf`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// On the controller, before a job starts, as SlurmUser.
    PrologSlurmctld,
    /// On the controller, after a job, as SlurmUser.
    EpilogSlurmctld,
    /// On a node, before the first step of a job, as root.
    Prolog,
    /// On a node, after a job, as root.
    Epilog,
    /// On a node, before each task, as the user of the job.
    TaskProlog,
    /// On a node, after each task, as the user of the job.
    TaskEpilog,
}

impl Hook {
    /// Returns the key in `slurm.conf`.
    #[must_use]
    pub const fn key(self) -> &'static str {
        match self {
            Self::PrologSlurmctld => "PrologSlurmctld",
            Self::EpilogSlurmctld => "EpilogSlurmctld",
            Self::Prolog => "Prolog",
            Self::Epilog => "Epilog",
            Self::TaskProlog => "TaskProlog",
            Self::TaskEpilog => "TaskEpilog",
        }
    }
}

/// The content of a file of the bed.
#[derive(Clone, Debug)]
pub(crate) enum FileContent {
    Text(String),
    CopyOf(PathBuf),
}

/// Options of a bed. Files are copied into the bed, where users of jobs can read them.
#[derive(Clone, Debug, Default)]
pub struct BedOptions {
    pub(crate) lines: Vec<String>,
    pub(crate) node_gres: String,
    pub(crate) exclusive_nodes: bool,
    pub(crate) hooks: Vec<(Hook, String)>,
    pub(crate) files: Vec<(String, FileContent)>,
    pub(crate) requeue_delay_seconds: Option<u32>,
    pub(crate) has_accounting: bool,
    pub(crate) has_backup: bool,
}

impl BedOptions {
    /// Creates options of a bed without hooks, licenses and plugins.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds licenses: `name:count`, several with commas between.
    #[must_use]
    pub fn licenses(self, licenses: &str) -> Self {
        self.line(&format!("Licenses={licenses}"))
    }

    /// Sets the `Gres=` of every node.
    #[must_use]
    pub fn node_gres(mut self, gres: &str) -> Self {
        gres.clone_into(&mut self.node_gres);
        self
    }

    /// Makes nodes exclusive: a job has its nodes alone.
    #[must_use]
    pub fn exclusive_nodes(mut self) -> Self {
        self.exclusive_nodes = true;
        self
    }

    /// Adds a hook as a script of `sh`. It runs with Slurm's environment for this hook and nothing else.
    #[must_use]
    pub fn hook_script(mut self, hook: Hook, script: &str) -> Self {
        let name = format!("hooks/{}", hook.key());
        self.files
            .push((name.clone(), FileContent::Text(format!("#!/bin/sh\n{script}\n"))));
        self.hooks.push((hook, format!("{}/{name}", BED)));
        self
    }

    /// Adds a hook as a path inside the bed, or as a command of this machine.
    #[must_use]
    pub fn hook_program(mut self, hook: Hook, path: &str) -> Self {
        self.hooks.push((hook, path.into()));
        self
    }

    /// Adds a SPANK plugin: a copy of the library, and its line `<kind> <path>` in `plugstack.conf`.
    #[must_use]
    pub fn spank_plugin(self, kind: &str, library: &Path) -> Self {
        let name = library
            .file_name()
            .map_or_else(|| "plugin.so".into(), |name| name.to_string_lossy().into_owned());
        let line = format!("{kind} {}/files/{name}\n", BED);
        self.copy(&format!("files/{name}"), library)
            .text("etc/plugstack.conf", &line)
    }

    /// Enables `job_submit/lua` with this script.
    #[must_use]
    pub fn job_submit_lua(self, script: &Path) -> Self {
        self.copy("etc/job_submit.lua", script)
            .line("JobSubmitPlugins=lua")
    }

    /// Adds a file with this text, at a path relative to the directory of the bed (`etc` is `/etc/slurm`).
    #[must_use]
    pub fn text(mut self, name: &str, text: &str) -> Self {
        self.files.push((name.into(), FileContent::Text(text.into())));
        self
    }

    /// Adds a copy of a file of this machine, at a path relative to the directory of the bed.
    #[must_use]
    pub fn copy(mut self, name: &str, source: &Path) -> Self {
        self.files.push((name.into(), FileContent::CopyOf(source.into())));
        self
    }

    /// Adds a line to `slurm.conf`.
    #[must_use]
    pub fn line(mut self, line: &str) -> Self {
        self.lines.push(line.into());
        self
    }

    /// Adds slurmdbd with a database, and its limits in slurmctld. The cluster is registered, without
    /// accounts.
    #[must_use]
    pub fn accounting(mut self) -> Self {
        self.has_accounting = true;
        self
    }

    /// Adds a backup slurmctld in standby. Both are of [`Daemon::SlurmctldOn`](crate::Daemon::SlurmctldOn).
    #[must_use]
    pub fn backup_slurmctld(mut self) -> Self {
        self.has_backup = true;
        self
    }

    /// Sets the delay before a requeued job may start, instead of Slurm's 121 s. It is also the lifetime of a
    /// credential, so it exceeds the time of the slowest Prolog; Slurm accepts 6 s and more.
    #[must_use]
    pub fn requeue_delay_seconds(mut self, seconds: u32) -> Self {
        self.requeue_delay_seconds = Some(seconds);
        self
    }
}
