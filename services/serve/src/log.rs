//! The log of a daemon, on standard error.

use std::io::IsTerminal as _;

use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Crates of the project that daemons consist of.
const PROJECT: [&str; 8] = [
    "ipu_allocator",
    "ipu_k8s",
    "ipu_operator",
    "ipu_proxy_client",
    "ipu_serve",
    "ipu_vipu_client",
    "vipu_proxy",
    "vipu_sim",
];

/// Format of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
#[non_exhaustive]
pub enum LogFormat {
    /// Lines for people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Starts the log of the process. Verbosity 1 has warnings, 2 the events of this project, 3 to 6 increasing
/// detail of the project and its libraries.
///
/// # Panics
///
/// If the process has a log already.
pub fn init_log(verbosity: u8, format: LogFormat) {
    let (project, libraries) = match verbosity {
        0 | 1 => (LevelFilter::WARN, LevelFilter::WARN),
        2 => (LevelFilter::INFO, LevelFilter::WARN),
        3 => (LevelFilter::DEBUG, LevelFilter::INFO),
        4 => (LevelFilter::DEBUG, LevelFilter::DEBUG),
        5 => (LevelFilter::TRACE, LevelFilter::DEBUG),
        _ => (LevelFilter::TRACE, LevelFilter::TRACE),
    };
    let filter = Targets::new()
        .with_default(libraries)
        .with_targets(PROJECT.map(|name| (name, project)));
    init_log_with(filter, format);
}

/// Starts the log of the process with this filter.
///
/// # Panics
///
/// If the process has a log already.
pub fn init_log_with(filter: Targets, format: LogFormat) {
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(format == LogFormat::Text && std::io::stderr().is_terminal());
    let lines = match format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    tracing_subscriber::registry().with(lines).with(filter).init();
}
