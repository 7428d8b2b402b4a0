//! `ipu-slurm doctor`: errors of the configuration and of this host.

mod cluster_name;
mod controllers;
mod job_partitions;
mod job_submit;
mod spank_plugin;

use std::fs::{self, Metadata};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::{Command, ExitCode};

use ipu_slurm::conf::SlurmConf;

use crate::conf_files::{VIPU_CONF, ipuof_directories};
use crate::render_command::{CheckArguments, Report, examine, finish};
use crate::safe_file;

/// The keys of hooks in `slurm.conf`.
const HOOKS: [&str; 5] = [
    "PrologSlurmctld",
    "EpilogSlurmctld",
    "Prolog",
    "Epilog",
    "TaskProlog",
];
/// The variable that Poplar reads.
const PARTITION_VARIABLE: &str = "IPUOF_VIPU_API_PARTITION_ID";
/// Its spelling in the table of the Slurm guide §8.6.
const MISSPELT_VARIABLE: &str = "IPUOF_VIPU_PARTITION_ID";

/// Prints the errors of the configuration and of this host.
pub(crate) fn doctor(arguments: &CheckArguments) -> ExitCode {
    finish(examine(arguments).map(|mut report| {
        let slurm_conf = report.slurm_conf.clone();
        let user = slurm_conf.value("SlurmUser").unwrap_or("root");
        match user_id(user) {
            Some(id) => check_host(&mut report, &slurm_conf, user, id),
            None => report.error(format!(
                "SlurmUser = {user}: the user does not exist; create it, or correct SlurmUser"
            )),
        }
        if report.uses_plugin {
            spank_plugin::check(&mut report, &arguments.directory());
        }
        job_submit::check(&mut report, &arguments.directory());
        cluster_name::check(&mut report, &arguments.directory());
        job_partitions::check(&mut report, &arguments.directory());
        if report.version.loses_licenses() {
            let line =
                "requeued jobs lose their licenses, so more jobs wait in PrologSlurmctld; install 25.11.7";
            report.error(format!("Slurm {}: {line}", report.version));
        }
        check_readable(&mut report, &arguments.directory());
        check_process_tracking(&mut report, &slurm_conf);
        check_features(&mut report, &slurm_conf);
        report
    }))
}

fn check_host(report: &mut Report, slurm_conf: &SlurmConf, user: &str, id: u32) {
    for key in HOOKS {
        // From Slurm 24.05 on, a hook has several programs.
        for program in slurm_conf.all(key) {
            check_hook(report, key, Path::new(program.value()), id);
        }
    }
    if let Some(path) = slurm_conf.value("TaskProlog") {
        check_variables(report, Path::new(path));
    }
    for directory in ipuof_directories(&report.conf) {
        let shown = directory.display();
        match fs::metadata(&directory) {
            Err(error) => report.error(format!("IpuofDir = {shown}: {error}; create it for {user}")),
            Ok(data) if !data.is_dir() => report.error(format!("IpuofDir = {shown}: is not a directory")),
            Ok(data) => {
                let mode = data.permissions().mode();
                let is_writable = id == 0 || data.uid() == id && mode & 0o200 != 0 || mode & 0o022 != 0;
                if !is_writable {
                    report.error(format!(
                        "IpuofDir = {shown}: SlurmUser cannot write there; run chown {user} {shown}"
                    ));
                }
                if mode & 0o022 != 0 || id == 0 && !is_owned(&data, id) {
                    report.error(format!(
                        "IpuofDir = {shown}: others can write there; run chown {user} {shown} and chmod 755 {shown}"
                    ));
                }
                if let Some(closed) = closed_parent(&directory) {
                    let closed = closed.display();
                    report.error(format!(
                        "IpuofDir = {shown}: jobs cannot enter {closed}; run chmod o+x {closed}"
                    ));
                }
                if mode & 0o005 != 0o005 {
                    report.error(format!(
                        "IpuofDir = {shown}: jobs cannot read it; run chmod 755 {shown}"
                    ));
                }
            }
        }
    }
    if let Some(path) = report.conf.cluster().proxy_token_file().map(str::to_owned) {
        match fs::metadata(&path) {
            Err(error) => report.error(format!("ProxyTokenFile = {path}: {error}; write the token there")),
            Ok(data) if !data.is_file() => {
                report.error(format!(
                    "ProxyTokenFile = {path}: is not a regular file; write the token there"
                ));
            }
            Ok(data) => {
                if data.permissions().mode() & 0o077 != 0 {
                    report.error(format!(
                        "ProxyTokenFile = {path}: others can read the token; run chmod 600 {path}, and replace the token"
                    ));
                }
                if id != 0 && data.uid() != id {
                    report.error(format!(
                        "ProxyTokenFile = {path}: SlurmUser does not own it; run chown {user} {path}"
                    ));
                }
            }
        }
    }
}

/// Checks that TaskProlog, which runs as the user, can read the settings. A job with static partitions would
/// otherwise start without them.
fn check_readable(report: &mut Report, directory: &Path) {
    let models = report.conf.models().map(|(name, _)| format!("{name}.conf"));
    let names: Vec<String> = std::iter::once(VIPU_CONF.to_owned()).chain(models).collect();
    for name in names {
        let path = directory.join(name);
        let shown = path.display();
        if fs::metadata(&path).is_ok_and(|data| data.permissions().mode() & 0o004 == 0) {
            report.error(format!("{shown}: jobs cannot read it; run chmod 644 {shown}"));
        }
    }
}

/// Checks that Slurm knows all processes of a job. Only cgroups keep those whose parent has ended.
fn check_process_tracking(report: &mut Report, slurm_conf: &SlurmConf) {
    // The default is proctrack/cgroup.
    let Some(plugin) = slurm_conf.value("ProctrackType") else {
        return;
    };
    if !plugin.eq_ignore_ascii_case("proctrack/cgroup") {
        report.warning(format!(
            "ProctrackType = {plugin}: Slurm can lose processes of a cancelled job, and they use its IPUs after the \
             release; write ProctrackType=proctrack/cgroup"
        ));
    }
}

/// Checks that a node has the Feature that jobs with IPUs of a model are constrained to.
fn check_features(report: &mut Report, slurm_conf: &SlurmConf) {
    if !slurm_conf.unread().is_empty() {
        return;
    }
    let nodes = slurm_conf.lines("NodeName");
    let has = |feature: &str| {
        nodes.iter().any(|node| {
            let features = node.get("Features").or_else(|| node.get("Feature"));
            features.is_some_and(|all| all.value().split(',').any(|one| one.trim() == feature))
        })
    };
    let models = report.conf.models();
    let missing = models.filter_map(|(name, model)| Some((name, model.node_feature()?)));
    let missing = missing.filter(|(_, feature)| !has(feature));
    let lines: Vec<String> = missing
        .map(|(name, feature)| {
            let names: Vec<&str> = nodes.iter().map(|node| node.name.value()).collect();
            format!(
                "NodeFeature = {feature} of {name}: none of the nodes {} has this Feature, and no job with IPUs \
                 starts; write Features={feature} at those that reach the IPUs",
                names.join(" ")
            )
        })
        .collect();
    for line in lines {
        report.error(line);
    }
}

/// Returns a parent directory that other users cannot enter.
fn closed_parent(directory: &Path) -> Option<&Path> {
    let mut parents = directory.ancestors().skip(1);
    parents.find(|parent| fs::metadata(parent).is_ok_and(|data| data.permissions().mode() & 0o001 == 0))
}

fn check_hook(report: &mut Report, key: &str, path: &Path, slurm_user: u32) {
    let shown = path.display();
    // Slurm accepts patterns of paths.
    if shown.to_string().contains(['*', '?', '[']) {
        return;
    }
    let data = match fs::metadata(path) {
        Ok(data) => data,
        Err(error) => return report.error(format!("{key} = {shown}: {error}; install the hook")),
    };
    let mode = data.permissions().mode();
    // The bits of the user that runs the hook.
    let executable = match key {
        "Prolog" | "Epilog" => 0o111,
        "TaskProlog" => 0o001,
        _ if slurm_user == 0 || slurm_user == data.uid() => 0o111,
        _ => 0o011,
    };
    if mode & executable == 0 {
        report.error(format!(
            "{key} = {shown}: is not executable; run chmod 755 {shown}"
        ));
    }
    if !is_owned(&data, slurm_user) || mode & 0o022 != 0 {
        report.error(format!(
            "{key} = {shown}: others can change it; run chown root {shown} and chmod 755 {shown}"
        ));
    }
}

fn is_owned(data: &Metadata, slurm_user: u32) -> bool {
    data.uid() == 0 || data.uid() == slurm_user
}

/// Checks the lines of a TaskProlog that is a script.
fn check_variables(report: &mut Report, path: &Path) {
    let Some(text) = safe_file::read(path).ok().filter(|text| text.starts_with("#!")) else {
        return;
    };
    for (index, line) in text.lines().enumerate() {
        let place = format!("{}:{}", path.display(), index + 1);
        let line = line.trim_start();
        if line.starts_with('#') {
            continue;
        }
        if line.contains(MISSPELT_VARIABLE) {
            report.error(format!(
                "{place}: {MISSPELT_VARIABLE} is not a Poplar variable; write {PARTITION_VARIABLE}"
            ));
        }
        let prints = ["echo ", "printf ", "print "]
            .iter()
            .any(|word| line.starts_with(word));
        let is_read = line.contains("export ") || line.contains("unset ");
        if prints && line.contains("IPUOF_") && !is_read {
            report.error(format!(
                "{place}: Slurm sets only variables that are exported; print \"export NAME=value\""
            ));
        }
    }
}

/// Returns the id of a user of this host; a number is an id.
fn user_id(name: &str) -> Option<u32> {
    if let Ok(id) = name.parse() {
        return Some(id);
    }
    let output = Command::new("/usr/bin/id")
        .args(["-u", "--", name])
        .output()
        .ok()?;
    String::from_utf8_lossy(&output.stdout).trim().parse().ok()
}
