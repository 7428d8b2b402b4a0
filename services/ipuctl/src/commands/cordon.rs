//! `ipuctl cordon`, `uncordon`, `cordons`, `drain`.

use std::time::Duration;

use ipu_proxy_client::cli::{self, CordonSelector};
use ipu_proxy_client::{CordonDocument, ProxyClient};

use crate::cli::{Cordon, Drain, Format, Uncordon};
use crate::exit_code::{Code, Failure};
use crate::output::Output;
use crate::table::{csv_line, render};
use crate::time;

/// Marks hardware unschedulable, and prints the partitions that still use it.
pub(crate) async fn cordon(
    arguments: Cordon,
    proxy: &ProxyClient,
    format: Format,
    output: &Output,
) -> Result<Code, Failure> {
    let Cordon { target, reason, id } = arguments;
    let cordoned = target.cordon(id, reason, proxy).await?;
    output.result(&render(format, &cordoned, || cli::cordoned_text(&cordoned))?);
    Ok(Code::Done)
}

/// Marks hardware schedulable.
pub(crate) async fn uncordon(
    arguments: Uncordon,
    proxy: &ProxyClient,
    format: Format,
    output: &Output,
) -> Result<Code, Failure> {
    let (id, lifted) = CordonSelector::uncordon(arguments.target.as_ref(), arguments.id, proxy).await?;
    output.result(&render(format, &lifted, || cli::uncordoned_text(&id, &lifted))?);
    Ok(Code::Done)
}

/// Header of the comma-separated values; stable, like the names in JSON.
const CSV_HEADINGS: [&str; 7] = ["id", "controller", "machine", "ipu", "owner", "reason", "since"];

/// Lists all cordons, by name.
pub(crate) async fn list(proxy: &ProxyClient, format: Format, output: &Output) -> Result<Code, Failure> {
    let cordons = proxy.cordons().await?.cordons;
    match format {
        Format::Name => {
            let names = cordons.iter().map(|cordon| format!("{}\n", cordon.id));
            output.result(&names.collect::<String>());
        }
        Format::Csv => output.result(&csv(&cordons)),
        _ if format.is_text() && cordons.is_empty() => output.say("No cordons found."),
        _ => output.result(&render(format, &cordons, || {
            cli::cordons(&cordons, ipu_proxy_client::now()).to_string()
        })?),
    }
    Ok(Code::Done)
}

/// Returns machine and IPU of a cordon; empty for all of them.
fn hardware(cordon: &CordonDocument) -> [String; 2] {
    [
        cordon
            .machine
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default(),
        cordon.ipu.map(|ipu| ipu.to_string()).unwrap_or_default(),
    ]
}

fn csv(cordons: &[CordonDocument]) -> String {
    let mut text = csv_line(&CSV_HEADINGS);
    for cordon in cordons {
        let [machine, ipu] = hardware(cordon);
        text.push_str(&csv_line(&[
            cordon.id.to_string(),
            cordon.controller.to_string(),
            machine,
            ipu,
            cordon.owner.to_string(),
            cordon.reason.clone(),
            time::format(cordon.since),
        ]));
    }
    text
}

/// Marks hardware unschedulable and waits until no partition uses it.
pub(crate) async fn drain(
    arguments: Drain,
    proxy: &ProxyClient,
    format: Format,
    output: &Output,
) -> Result<Code, Failure> {
    let Cordon { target, reason, id } = arguments.cordon;
    let timeout = arguments.wait_for.map(Duration::from_secs);
    let mut on_wait = |text: String| output.status(Some(&text));
    let drained = target.drain(id, reason, timeout, proxy, &mut on_wait).await;
    output.status(None);
    let drained = drained?;
    output.result(&render(format, &drained, || {
        format!("{} drained\n", drained.cordon)
    })?);
    Ok(Code::Done)
}
