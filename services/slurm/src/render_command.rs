//! `ipu-slurm render` and `ipu-slurm check`: the configuration of Slurm for IPUs.

mod files;

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use ipu_core::job::ErrorList;
use ipu_slurm::conf::{ConfError, ConfFiles, HostMap, SlurmConf};
use ipu_slurm::host_map::sole_vipu_controller;
use ipu_slurm::render::{
    RenderInput, RenderOptions, Rendered, Severity, SlurmVersion, render as render_files,
};

use crate::conf_files::{self, VIPU_CONF};
use crate::failure::Failure;
use crate::safe_file;
use files::{Files, installed_version};

/// The options of `check`.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub(crate) struct CheckArguments {
    /// Directory of slurm.conf and vipu.conf [default: that of SLURM_CONF, or /etc/slurm].
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Version of Slurm [default: that of the installed slurmctld or slurmd].
    #[arg(long, value_name = "VERSION")]
    slurm_version: Option<SlurmVersion>,
    /// IPUs of a model, if it has more than its largest partition. Can be repeated.
    #[arg(long, value_name = "MODEL=N", value_parser = parse_ipus)]
    ipus: Vec<(String, u32)>,
    /// Directory of the hooks.
    #[arg(long, value_name = "DIR", default_value = "/usr/lib/ipu-slurm")]
    hook_directory: String,
    /// Path of the SPANK plugin on all hosts.
    #[arg(long, value_name = "FILE")]
    #[arg(default_value = "/usr/local/lib/slurm/libspank_vipu.so")]
    spank_plugin: String,
    /// URL of the proxy, for a vipu.conf without one.
    #[arg(long, value_name = "URL", default_value = "unix:/run/vipu-proxy/socket")]
    proxy: String,
    /// File with the token for the proxy, for a vipu.conf without a proxy.
    #[arg(long, value_name = "FILE")]
    proxy_token_file: Option<String>,
}

/// The options of `render`.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub(crate) struct RenderArguments {
    #[command(flatten)]
    check: CheckArguments,
    /// Directory to write the files to; it is created. Without it, the files are printed.
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
}

fn parse_ipus(text: &str) -> Result<(String, u32), String> {
    let (model, number) = text.split_once('=').unwrap_or((text, ""));
    match number.parse() {
        Ok(number) if number > 0 && !model.is_empty() => Ok((model.to_owned(), number)),
        _ => Err("must be a model and its number of IPUs; use pod64=64, for example".to_owned()),
    }
}

/// Writes or prints the files, and prints the changes.
pub(crate) fn render(arguments: &RenderArguments) -> ExitCode {
    let rendered = match read(&arguments.check) {
        Ok((rendered, ..)) => rendered,
        Err(lines) => return print_failure(&lines),
    };
    let source = arguments.check.directory();
    let (by_hand, files): (Vec<_>, Vec<_>) = rendered.files.iter().partition(|(name, _)| is_outside(name));
    let result = match &arguments.output {
        _ if !rendered.is_complete => Ok(()),
        None => print(&mut io::stdout(), &rendered.to_string()),
        Some(directory) => write_files(&source, directory, &files),
    };
    if let Err(Failure(line)) = result {
        return print_failure(&[line]);
    }
    let mut lines: Vec<String> = rendered.findings.iter().map(ToString::to_string).collect();
    if rendered.is_complete {
        lines.extend(rendered.notes.iter().map(|note| format!("note: {note}")));
    }
    if rendered.is_complete && arguments.output.is_some() {
        lines.extend(by_hand.iter().map(|(name, _)| {
            let source = source.display();
            format!("note: {name} is not in {source}, and is not written: make its changes by hand")
        }));
    }
    // The files may be on standard output.
    let _ = print(&mut io::stderr(), &joined(&lines));
    if rendered.is_complete {
        return ExitCode::SUCCESS;
    }
    print_failure(&[
        "nothing is written: an included file that cannot be read may have the absent settings".to_owned(),
    ])
}

/// Returns whether an included file is not in the directory of `slurm.conf`.
fn is_outside(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    parts.any(|part| matches!(part, Component::RootDir | Component::ParentDir))
}

/// A configuration and its mistakes.
pub(crate) struct Report {
    /// The lines to print.
    pub(crate) lines: Vec<String>,
    /// Whether a line is an error.
    pub(crate) has_errors: bool,
    /// `vipu.conf` and the models.
    pub(crate) conf: ConfFiles,
    /// The version of Slurm.
    pub(crate) version: SlurmVersion,
    /// `slurm.conf` and the files that it includes.
    pub(crate) slurm_conf: SlurmConf,
    /// Whether every host needs the SPANK plugin.
    pub(crate) uses_plugin: bool,
}

/// Prints the errors of the configuration.
pub(crate) fn check(arguments: &CheckArguments) -> ExitCode {
    finish(examine(arguments))
}

/// Prints a report; the exit code shows whether the report has errors.
pub(crate) fn finish(report: Result<Report, Vec<String>>) -> ExitCode {
    let report = match report {
        Ok(report) => report,
        Err(lines) => return print_failure(&lines),
    };
    let is_printed = print(&mut io::stdout(), &joined(&report.lines)).is_ok();
    if report.has_errors || !is_printed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

impl Report {
    /// Adds an error.
    pub(crate) fn error(&mut self, line: impl Into<String>) {
        self.lines.push(format!("error: {}", line.into()));
        self.has_errors = true;
    }

    /// Adds an error before all others, which may follow from it.
    pub(crate) fn first_error(&mut self, line: &str) {
        self.lines.insert(0, format!("error: {line}"));
        self.has_errors = true;
    }

    /// Adds a warning, which does not change the exit code.
    pub(crate) fn warning(&mut self, line: impl Into<String>) {
        self.lines.push(format!("warning: {}", line.into()));
    }
}

/// Reads the configuration and finds its mistakes.
pub(crate) fn examine(arguments: &CheckArguments) -> Result<Report, Vec<String>> {
    let (rendered, conf, files) = read(arguments)?;
    let version = files.version;
    let mut report = Report {
        lines: rendered.findings.iter().map(ToString::to_string).collect(),
        has_errors: rendered
            .findings
            .iter()
            .any(|finding| finding.severity == Severity::Error),
        slurm_conf: files.slurm_conf,
        conf,
        version,
        uses_plugin: rendered.uses_plugin,
    };
    if let Some(path) = report.conf.cluster().host_map().map(str::to_owned) {
        match safe_file::read_text(Path::new(&path)) {
            Ok(text) => {
                for mistake in HostMap::parse(&path, &text).err().into_iter().flatten() {
                    report.error(mistake.to_string());
                }
            }
            Err(error) => report.error(format!("cannot read {path}: {error}")),
        }
        if let Err(error) = sole_vipu_controller(&report.conf).map(drop) {
            report.error(error.to_string());
        }
    }
    Ok(report)
}

impl CheckArguments {
    pub(crate) fn directory(&self) -> PathBuf {
        self.directory.clone().unwrap_or_else(conf_files::directory)
    }

    fn options(&self) -> RenderOptions {
        let mut options = RenderOptions::default();
        options.ipus = self.ipus.iter().cloned().collect();
        options.proxy.clone_from(&self.proxy);
        options.proxy_token_file.clone_from(&self.proxy_token_file);
        options.hook_directory.clone_from(&self.hook_directory);
        options.spank_plugin.clone_from(&self.spank_plugin);
        options
    }
}

/// Reads and renders the configuration; the errors are lines.
fn read(arguments: &CheckArguments) -> Result<(Rendered, ConfFiles, Files), Vec<String>> {
    let one = |Failure(line)| vec![line];
    let version = match arguments.slurm_version {
        Some(version) => version,
        None => installed_version().map_err(one)?,
    };
    let files = Files::read(&arguments.directory(), version).map_err(one)?;
    let models: Vec<(&str, &str)> = files
        .models
        .iter()
        .map(|(name, text)| (name.as_str(), text.as_str()))
        .collect();
    let host_map = host_map(&files, &models);
    let rendered = render_files(&RenderInput {
        version,
        slurm_conf: files.slurm_conf.clone(),
        vipu_conf: (VIPU_CONF, &files.vipu_conf),
        models: &models,
        host_map: host_map.as_ref(),
        gres_conf: &files.gres_conf,
        plugstack_conf: &files.plugstack_conf,
        options: arguments.options(),
    });
    let shown = |errors: ErrorList<ConfError>| errors.iter().map(ToString::to_string).collect::<Vec<_>>();
    let rendered = rendered.map_err(shown)?;
    let vipu_conf = rendered.files.iter().find(|(name, _)| name == VIPU_CONF);
    let vipu_conf = vipu_conf.map_or(&files.vipu_conf, |(_, text)| text);
    let conf = ConfFiles::parse((VIPU_CONF, vipu_conf), &models).map_err(shown)?;
    Ok((rendered, conf, files))
}

/// Returns the host map of `vipu.conf`, if it has no error.
fn host_map(files: &Files, models: &[(&str, &str)]) -> Option<HostMap> {
    let conf = ConfFiles::parse((VIPU_CONF, &files.vipu_conf), models).ok()?;
    let path = conf.cluster().host_map()?;
    HostMap::parse(path, &safe_file::read_text(Path::new(path)).ok()?).ok()
}

fn write_files(source: &Path, directory: &Path, files: &[&(String, String)]) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure(format!("cannot write to {}: {error}", directory.display()));
    fs::create_dir_all(directory).map_err(failed)?;
    if directory.canonicalize().ok() == source.canonicalize().ok() {
        return Err(Failure(format!(
            "--output = {}: is the directory of the configuration; use another directory, compare, and copy the files",
            directory.display()
        )));
    }
    for (name, text) in files {
        let path = directory.join(name);
        let original = source.join(name);
        let bytes = safe_file::encoded_as(&original, text);
        fs::create_dir_all(path.parent().unwrap_or(directory)).map_err(failed)?;
        replace(&path, &bytes, mode_of(&original)).map_err(failed)?;
    }
    Ok(())
}

/// Returns the permissions of a file: a new version of it has no more readers.
fn mode_of(path: &Path) -> u32 {
    fs::metadata(path).map_or(0o666, |metadata| metadata.permissions().mode() & 0o777)
}

/// Writes a new file in the place of an old one. A symbolic link is replaced, not followed.
fn replace(path: &Path, text: &[u8], mode: u32) -> io::Result<()> {
    safe_file::remove_if_exists(path)?;
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(mode).open(path)?;
    file.write_all(text)
}

fn joined(lines: &[String]) -> String {
    lines.iter().map(|line| format!("{line}\n")).collect()
}

fn print_failure(lines: &[String]) -> ExitCode {
    let lines: Vec<String> = lines.iter().map(|line| format!("error: {line}")).collect();
    let _ = print(&mut io::stderr(), &joined(&lines));
    ExitCode::FAILURE
}

fn print(target: &mut impl io::Write, text: &str) -> Result<(), Failure> {
    target.write_all(text.as_bytes())?;
    Ok(target.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rendered_file_replaces_a_symbolic_link_and_spares_its_target() {
        let directory = tempfile::tempdir().unwrap();
        let (target, link) = (
            directory.path().join("original"),
            directory.path().join("vipu.conf"),
        );
        fs::write(&target, "old").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        replace(&link, b"new", 0o644).unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "old");
        assert_eq!(fs::read_to_string(&link).unwrap(), "new");
    }
}
