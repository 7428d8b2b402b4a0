//! `ipuctl --proxy URL …`: the same commands through a proxy, which owns the ledger and serves everybody.

mod capacity;
mod cordon;
mod partition;
mod plan;
mod usage;

use std::time::Duration;

use ipu_proxy_client::{
    ClientCertificate, ClientError, ClientOptions, PartitionDocument, ProxyClient, TlsFiles, Token,
};

use crate::cli::{Command, Global, Partition};
use crate::exit_code::{Code, Failure};
use crate::output::Output;

/// The client of the proxy that was named; an empty name is none, so that one can go past a proxy of the environment.
pub(crate) fn client(global: &Global) -> Result<Option<ProxyClient>, Failure> {
    let through = &global.through;
    let Some(url) = through.proxy.as_ref().filter(|url| !url.is_empty()) else {
        return Ok(None);
    };
    if global.vipu.is_some() {
        let message = "--vipu and --proxy (IPUCTL_PROXY) exclude each other; --proxy '' leaves the proxy out";
        return Err(Failure::new(Code::Usage, message));
    }
    let mut options = ClientOptions::default();
    options.token = through.proxy_token_file.clone().map(Token::File);
    options.deadline = Duration::from_secs(global.timeout);
    options.tls = through.proxy_ca.as_ref().map(|ca| {
        let mut files = TlsFiles::new(ca);
        if let (Some(certificate), Some(key)) = (&through.proxy_cert, &through.proxy_key) {
            files.own = Some(ClientCertificate::new(certificate, key));
        }
        files
    });
    let client = ProxyClient::new(url, options)
        .map_err(|error| Failure::because(Code::Usage, "proxy (--proxy, --proxy-ca)", error))?;
    Ok(Some(client))
}

/// What only a proxy does.
pub(crate) fn needed(command: &str) -> Failure {
    let message = format!("{command} is asked of a proxy: name it with --proxy URL or IPUCTL_PROXY");
    Failure::new(Code::Usage, message)
}

/// What a proxy does not do, and what to do instead.
fn unsupported(command: &str, instead: &str) -> Failure {
    Failure::new(
        Code::Usage,
        format!("{command} does not go through a proxy: {instead}"),
    )
}

/// Does what the command says.
pub(crate) async fn run(
    command: Command,
    proxy: &ProxyClient,
    global: &Global,
    output: &Output,
) -> Result<Code, Failure> {
    // It withdraws its request when it is interrupted.
    let ends_by_itself = matches!(command, Command::Partition(Partition::Create { .. }));
    let work = async {
        match command {
            Command::Partition(command) => partition::run(command, proxy, global.output, output).await,
            Command::Query(arguments) => capacity::query(arguments, proxy, global.output, output).await,
            Command::Stats => capacity::stats(proxy, global.output, output).await,
            Command::Waiting => partition::waiting(proxy, global.output, output).await,
            Command::Controllers => capacity::controllers(proxy, global.output, output).await,
            Command::Plan(arguments) => plan::run(arguments, proxy, global, output).await,
            Command::Usage(arguments) => usage::run(&arguments, proxy, global.output, output).await,
            Command::Cordon(arguments) => cordon::cordon(arguments, proxy, global.output, output).await,
            Command::Uncordon(arguments) => cordon::uncordon(arguments, proxy, global.output, output).await,
            Command::Drain(arguments) => cordon::drain(arguments, proxy, global.output, output).await,
            Command::Gc => capacity::repair(proxy, global.output, output).await,
            Command::Run(_) => Err(unsupported(
                "run",
                "it starts processes on this host; name a controller with --vipu and leave the proxy out with --proxy ''",
            )),
            Command::ServerVersion(_) => Err(unsupported(
                "server-version",
                "there may be several controllers; `ipuctl controllers` tells their versions",
            )),
            Command::Completions { .. } | Command::Decide(_) => Ok(Code::Done),
        }
    };
    tokio::select! {
        done = work => done,
        _ = tokio::signal::ctrl_c(), if !ends_by_itself => {
            output.status(None);
            Ok(Code::Signal(2))
        }
    }
}

/// What an error means for the exit code.
fn failure(error: ClientError) -> Failure {
    let code = match &error {
        ClientError::Refused { problem, .. } => match (problem.status, problem.code.as_str()) {
            (401 | 403, _) | (_, "NotTheOwner" | "Foreign" | "Quarantined" | "OtherExclusion") => {
                Code::Denied
            }
            (404, _) => Code::NotFound,
            (_, "DoesNotFit") if error.reason().is_some_and(crate::run::never_fits) => Code::Impossible,
            (_, "DoesNotFit" | "LineFull" | "NamespaceQueueFull") => Code::NoRoom,
            (_, "ControllerRefused") => Code::Impossible,
            (_, "PartitionFailed") => Code::Unavailable,
            (400..=499, _) => Code::Data,
            _ => Code::Unavailable,
        },
        ClientError::TlsRejected { .. } => Code::Denied,
        ClientError::Token { .. } => Code::NotFound,
        ClientError::Late { .. } => Code::NoRoom,
        ClientError::Request { .. } => Code::Bug,
        _ => Code::Unavailable,
    };
    Failure::because(code, "proxy", error)
}

/// The most blockers that are named; the others are counted.
const NAMED: usize = 3;

/// Why a partition is not ready, where in the line, and for whom.
fn why(partition: &PartitionDocument) -> String {
    let mut text = partition
        .reason
        .as_ref()
        .map(|reason| reason.message.clone())
        .unwrap_or_default();
    let Some(waiting) = &partition.waiting else {
        return text;
    };
    text = format!("position {}: {text}", waiting.position);
    let blockers: Vec<String> = waiting
        .blockers
        .iter()
        .take(NAMED)
        .map(|blocker| match &blocker.owner {
            Some(owner) => format!("{owner} ({})", blocker.id),
            None => blocker.id.to_string(),
        })
        .collect();
    if !blockers.is_empty() {
        text.push_str(&format!("; held up by {}", blockers.join(", ")));
        let more = waiting.blockers.len().saturating_sub(NAMED);
        if more > 0 {
            text.push_str(&format!(" and {more} more"));
        }
    }
    text
}
