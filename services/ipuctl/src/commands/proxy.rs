//! `ipuctl --proxy URL …`: the same commands through a proxy, which owns the ledger and is shared by many
//! users.

mod capacity;
mod cordon;
mod partition;
mod plan;
mod usage;

use std::time::Duration;

use ipu_core::Reason;
use ipu_proxy_client::{
    ClientCertificate, ClientError, ClientOptions, CordonDocument, ProxyClient, SetupError, TlsFiles, Token,
};

use crate::cli::{Command, Global, Partition};
use crate::exit_code::{Code, Failure};
use crate::output::Output;

/// Returns the client of the configured proxy. An empty URL is none, and overrides the proxy of the
/// environment.
pub(crate) fn client(global: &Global) -> Result<Option<ProxyClient>, Failure> {
    let arguments = &global.proxy_args;
    let Some(url) = arguments.proxy.as_ref().filter(|url| !url.is_empty()) else {
        return Ok(None);
    };
    if global.vipu.is_some() {
        let message = "--vipu and --proxy (IPUCTL_PROXY) exclude each other; --proxy '' disables the proxy";
        return Err(Failure::new(Code::Usage, message));
    }
    if let Some(option) = global.placement_args.first_option() {
        let message = format!(
            "{option} and --proxy (IPUCTL_PROXY) exclude each other, because the proxy decides; leave out {option}, \
             or use --proxy '' for the ledger of this user"
        );
        return Err(Failure::new(Code::Usage, message));
    }
    let mut options = ClientOptions::default();
    options.token = arguments.proxy_token_file.clone().map(Token::File);
    options.deadline = Duration::from_secs(global.timeout);
    options.tls = arguments.proxy_ca.as_ref().map(|ca| {
        let mut files = TlsFiles::new(ca);
        if let (Some(certificate), Some(key)) = (&arguments.proxy_cert, &arguments.proxy_key) {
            files.own = Some(ClientCertificate::new(certificate, key));
        }
        files
    });
    let client = ProxyClient::new(url, options).map_err(|error| {
        let option = match &error {
            SetupError::MissingCaCertificate { .. } => "--proxy-ca is missing",
            SetupError::NotSecure { .. } | SetupError::Url { .. } => "--proxy",
            _ => "--proxy-ca, --proxy-cert and --proxy-key",
        };
        Failure::because(Code::Usage, option, error)
    })?;
    Ok(Some(client))
}

/// Returns the error for a command or flag that only a proxy supports.
pub(crate) fn requires_proxy(command: &str) -> Failure {
    let message = format!("{command} requires a proxy: set --proxy URL or IPUCTL_PROXY");
    Failure::new(Code::Usage, message)
}

/// Returns the error for a command that a proxy does not support, with the alternative.
fn unsupported(command: &str, instead: &str) -> Failure {
    Failure::new(
        Code::Usage,
        format!("{command} is not supported with a proxy: {instead}"),
    )
}

/// Runs the command.
pub(crate) async fn run(
    command: Command,
    proxy: &ProxyClient,
    global: &Global,
    output: &Output,
) -> Result<Code, Failure> {
    // This command withdraws its request when it is interrupted.
    let handles_interrupt = matches!(command, Command::Partition(Partition::Create { .. }));
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
            Command::Cordons => cordon::list(proxy, global.output, output).await,
            Command::Drain(arguments) => cordon::drain(arguments, proxy, global.output, output).await,
            Command::Repair => capacity::repair(proxy, global.output, output).await,
            Command::Gc => Err(unsupported(
                "gc",
                "it cleans up after runs of this host; use --proxy '', or `ipuctl repair` for the ledger of the proxy",
            )),
            Command::Run(_) => Err(unsupported(
                "run",
                "it starts processes on this host; use --vipu and --proxy ''",
            )),
            Command::ServerVersion(_) => Err(unsupported(
                "server-version",
                "use `ipuctl controllers`, which shows all versions",
            )),
            Command::List => Err(unsupported("list", "it lists runs of this host; use --proxy ''")),
            Command::Map => Err(unsupported("map", "use `ipuctl partition list`")),
            Command::Completions { .. } | Command::Decide(_) | Command::Render(_) => Ok(Code::Done),
        }
    };
    tokio::select! {
        result = work => result,
        _ = tokio::signal::ctrl_c(), if !handles_interrupt => {
            output.status(None);
            output.say("Interrupted.");
            Ok(Code::Signal(2))
        }
    }
}

/// Maps an error of the client to an exit code.
fn failure(error: ClientError) -> Failure {
    let code = match &error {
        ClientError::Refused { problem, .. } => match (problem.status, problem.code.as_str()) {
            (401 | 403, _) | (_, "NotTheOwner" | "Foreign" | "Quarantined" | "OtherExclusion") => {
                Code::Denied
            }
            (404, _) => Code::NotFound,
            (_, "DoesNotFit") if error.reason().is_some_and(crate::run::never_fits) => Code::Impossible,
            (_, "DoesNotFit" | "LineFull" | "NamespaceQueueFull") => Code::NoCapacity,
            (_, "ControllerRefused") => Code::Impossible,
            (_, "PartitionFailed") => Code::Unavailable,
            (400..=499, _) => Code::Data,
            _ => Code::Unavailable,
        },
        ClientError::TlsRejected { .. } => Code::Denied,
        ClientError::Token { .. } => Code::NotFound,
        ClientError::TimedOut { .. } => Code::NoCapacity,
        ClientError::Request { .. } => Code::Bug,
        _ => Code::Unavailable,
    };
    Failure::because(code, "proxy", error)
}

/// Returns the cordons of the proxy, if a reason refers to them; none if the proxy does not report them.
async fn cordons_for<'a>(
    reasons: impl IntoIterator<Item = &'a Reason>,
    proxy: &ProxyClient,
) -> Vec<CordonDocument> {
    if reasons.into_iter().all(|reason| reason.code != "Excluded") {
        return Vec::new();
    }
    let list = proxy.cordons().await;
    list.map(|list| list.cordons).unwrap_or_default()
}
