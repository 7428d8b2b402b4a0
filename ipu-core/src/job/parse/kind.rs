//! Kind of a job: workers alone, a launcher with workers, or an interactive session.

use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;

use super::counts::ProcessCounts;
use super::diagnostics::Diagnostics;
use crate::job::JobKind;
use crate::job::raw::{EnvVar, RawLauncher, RawSpec};

const LAUNCHER: &str = "spec.launcher";
const COMMAND: &str = "spec.launcher.command";
const TTL: &str = "spec.interactive.ttl";
const TCP_INTERFACE: &str = "spec.launcher.tcpInterface";

/// The option of Open MPI whose absence is a documented limitation (seed 000 §6.11).
const BTL_TCP_IF_INCLUDE: &str = "btl_tcp_if_include";

/// Kind of the job, and the settings of its launcher.
pub(super) struct KindFields {
    pub(super) kind: JobKind,
    pub(super) env: Vec<EnvVar>,
    pub(super) tcp_interface: Option<String>,
}

/// Parses the kind of the job (seed 000 §6.6, §6.6.1, §6.7).
pub(super) fn parse(
    raw: &RawSpec,
    counts: ProcessCounts,
    diagnostics: &mut Diagnostics,
) -> Option<KindFields> {
    if let Some(strategy) = raw.workers.as_ref().and_then(|workers| workers.strategy.as_ref()) {
        diagnostics.warn(
            "spec.workers.strategy",
            Some(strategy.kind.as_deref().unwrap_or("{…}")),
            "is ignored: the workers of an attempt are replaced together, on a partition that was reset",
            "remove it",
        );
    }
    let env = raw.launcher.as_ref().map(|launcher| env(launcher, diagnostics));
    let tcp_interface = raw
        .launcher
        .as_ref()
        .and_then(|launcher| tcp_interface(launcher, diagnostics));
    let kind = match (&raw.interactive, &raw.launcher) {
        (None, None) => Some(JobKind::Workers),
        (None, Some(launcher)) => command(launcher, diagnostics).map(|command| JobKind::Launcher { command }),
        (Some(interactive), launcher) => {
            if let Some(command) = launcher.as_ref().and_then(|launcher| launcher.command.as_ref()) {
                diagnostics.warn(
                    COMMAND,
                    command.first().map(String::as_str),
                    "is not run: the job is interactive, and users work in its launcher",
                    "leave out launcher.command or interactive",
                );
            }
            if interactive.ttl.is_none() {
                diagnostics.refuse(
                    TTL,
                    None,
                    "an interactive job ends after it",
                    "add the seconds that the session may last",
                );
            }
            let ttl = diagnostics.seconds(TTL, interactive.ttl.as_ref(), 1);
            ttl.map(|ttl| JobKind::Interactive { ttl })
        }
    };
    let kind = kind?;
    warn_about_multiple(raw, &kind, counts, diagnostics);
    Some(KindFields {
        kind,
        env: env.unwrap_or_default(),
        tcp_interface,
    })
}

fn command(launcher: &RawLauncher, diagnostics: &mut Diagnostics) -> Option<Vec<String>> {
    let command = launcher.command.as_deref().unwrap_or_default();
    let first = command.first().map(String::as_str);
    match first {
        None | Some("") => {
            diagnostics.refuse(
                COMMAND,
                first.map(|_| "\"\""),
                "a launcher starts the work with a command",
                "add the program and its arguments, one list item each",
            );
            None
        }
        Some(_) if command.iter().any(|word| word.contains('\0')) => {
            diagnostics.refuse(
                COMMAND,
                first,
                "no argument can hold a NUL character",
                "remove it",
            );
            None
        }
        Some(_) => Some(command.to_vec()),
    }
}

fn env(launcher: &RawLauncher, diagnostics: &mut Diagnostics) -> Vec<EnvVar> {
    for (i, EnvVar { name, value }) in launcher.env.iter().enumerate() {
        if name.is_empty() || name.contains(['=', '\0']) {
            diagnostics.refuse(
                &format!("{LAUNCHER}.env[{i}].name"),
                Some(&format!("{name:?}")),
                "a variable's name is not empty and holds neither '=' nor NUL",
                "give the name alone",
            );
        }
        if value.contains('\0') {
            diagnostics.refuse(
                &format!("{LAUNCHER}.env[{i}].value"),
                // Hidden, because it may be a secret.
                Some("…"),
                "a variable's value holds no NUL",
                "remove it",
            );
        }
    }
    launcher.env.clone()
}

fn tcp_interface(launcher: &RawLauncher, diagnostics: &mut Diagnostics) -> Option<String> {
    let text = launcher.tcp_interface.as_ref()?;
    if text.is_empty() || !text.chars().all(|c| c.is_ascii_graphic()) {
        diagnostics.refuse(
            TCP_INTERFACE,
            Some(&format!("{text:?}")),
            "must be interfaces or subnets as Open MPI reads them, without blanks",
            "write eth0 or 10.0.0.0/16, for example, several with commas",
        );
        return None;
    }
    Some(text.clone())
}

fn warn_about_multiple(raw: &RawSpec, kind: &JobKind, counts: ProcessCounts, diagnostics: &mut Diagnostics) {
    let command = match kind {
        JobKind::Workers => return,
        JobKind::Launcher { command } => Some(command),
        JobKind::Interactive { .. } => None,
    };
    if counts.instances > 1 {
        diagnostics.warn(
            "spec.jobInstances",
            Some(&counts.instances.to_string()),
            "each instance has a launcher of its own, which starts work on that instance's workers only",
            "use 1 for one training over all workers",
        );
    }
    if counts.workers > 1 && command.is_some_and(|command| is_mpi_command(command)) && !has_tcp_interface(raw)
    {
        diagnostics.warn(
            COMMAND,
            command.and_then(|command| command.first()).map(String::as_str),
            format!("{} workers communicate over MPI, and the network interface is not determined (a documented limitation)", counts.workers),
            format!("set {TCP_INTERFACE}, which exports OMPI_MCA_{BTL_TCP_IF_INCLUDE}, or pass --mca {BTL_TCP_IF_INCLUDE}"),
        );
    }
}

/// Returns whether `command` is or calls Open MPI's launcher, also from within a shell's `-c`.
fn is_mpi_command(command: &[String]) -> bool {
    let names_mpi = |word: &str| {
        let program = word.rsplit_once('/').map_or(word, |(_, name)| name);
        matches!(program, "mpirun" | "mpiexec" | "orterun")
    };
    command
        .iter()
        .any(|argument| argument.split_whitespace().any(names_mpi))
}

fn has_tcp_interface(raw: &RawSpec) -> bool {
    raw.launcher.as_ref().is_some_and(|launcher| {
        let command = launcher.command.as_deref().unwrap_or_default();
        launcher.tcp_interface.is_some()
            || command.iter().any(|word| word.contains(BTL_TCP_IF_INCLUDE))
            || launcher
                .env
                .iter()
                .any(|var| var.name.contains(BTL_TCP_IF_INCLUDE))
    })
}
