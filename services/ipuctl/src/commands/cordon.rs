//! `ipuctl cordon`, `uncordon`, `cordons`, `drain`.

use std::time::Duration;

use ipu_core::{CordonId, Timestamp};
use ipu_proxy_client::{BlockerDocument, ClientError, CordonDocument, CordonRequest, ProxyClient};
use serde::Serialize;

use crate::cli::{Cordon, Drain, Format, Uncordon};
use crate::connection::failure;
use crate::display;
use crate::exit_code::{Code, Failure};
use crate::output::Output;
use crate::table::{Table, csv_line, render};
use crate::{clock, time};

/// Target of a cordon: a controller, one of its machines, or one IPU of a machine.
#[derive(Debug, PartialEq, Eq)]
struct CordonSelector {
    controller: Option<String>,
    machine: Option<String>,
    ipu: Option<u32>,
}

/// Result of a drain.
#[derive(Debug, Serialize)]
struct Drained<'a> {
    cordon: &'a str,
    drained: bool,
}

impl CordonSelector {
    /// Parses a target. The name of a controller contains its port, that of a machine does not.
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('/').peekable();
        let controller = parts.next_if(|part| part.contains(':')).map(str::to_owned);
        let machine = parts.next().map(str::to_owned);
        let ipu = parts.next().map(str::parse).transpose().ok()?;
        let is_named = controller.is_some() || machine.is_some();
        let is_complete = machine.as_ref().is_none_or(|machine| !machine.is_empty());
        (is_named && is_complete && parts.next().is_none()).then_some(Self {
            controller,
            machine,
            ipu,
        })
    }

    /// Returns the default name of a cordon of this target.
    fn cordon_id(&self, controller: &str) -> String {
        let mut id = controller.to_owned();
        if let Some(machine) = &self.machine {
            id = format!("{id}.{machine}");
        }
        if let Some(ipu) = self.ipu {
            id = format!("{id}.{ipu}");
        }
        id.replace(|c: char| !c.is_ascii_alphanumeric() && !"._-".contains(c), "-")
    }
}

fn parse_target(text: &str) -> Result<CordonSelector, Failure> {
    CordonSelector::parse(text).ok_or_else(|| {
        let message = format!(
            "invalid target {text:?}: use CONTROLLER, CONTROLLER/MACHINE or CONTROLLER/MACHINE/IPU, such as \
             pod1:8090/a1/2; if there is one controller, also MACHINE or MACHINE/IPU"
        );
        Failure::new(Code::Usage, message)
    })
}

/// Returns the controller of the target, else the only controller of the proxy.
async fn find_controller(target: &CordonSelector, proxy: &ProxyClient) -> Result<String, Failure> {
    if let Some(controller) = &target.controller {
        return Ok(controller.clone());
    }
    let list = proxy.controllers().await.map_err(failure)?;
    let names: Vec<String> = list
        .controllers
        .iter()
        .map(|status| status.controller.name.to_string())
        .collect();
    match names.as_slice() {
        [one] => Ok(one.clone()),
        _ => Err(Failure::new(
            Code::Usage,
            format!(
                "the proxy has several controllers, use CONTROLLER/MACHINE: {}",
                names.join(", ")
            ),
        )),
    }
}

async fn cordon_request(arguments: Cordon, proxy: &ProxyClient) -> Result<CordonRequest, Failure> {
    let target = parse_target(&arguments.target)?;
    let controller = find_controller(&target, proxy).await?;
    let id = arguments.id.unwrap_or_else(|| target.cordon_id(&controller));
    let mut cordon = CordonRequest::new(id, controller, arguments.reason);
    cordon.machine = target.machine;
    cordon.ipu = target.ipu;
    Ok(cordon)
}

/// Returns the partitions that use cordoned hardware, with their owners.
fn holder_names(holders: &[BlockerDocument]) -> String {
    let name = |holder: &BlockerDocument| match &holder.owner {
        Some(owner) => format!("{} ({})", holder.id, display::owner_name(owner)),
        None => holder.id.to_string(),
    };
    holders.iter().map(name).collect::<Vec<_>>().join(", ")
}

/// Returns the failure of a cordon or uncordon; one about another cordon of the same name says who cordoned
/// it and why.
async fn cordon_failure(error: ClientError, id: &str, proxy: &ProxyClient) -> Failure {
    if error.code() != Some("OtherCordon") {
        return failure(error);
    }
    let list = proxy.cordons().await.map(|list| list.cordons).unwrap_or_default();
    match list.iter().find(|cordon| cordon.id.as_str() == id) {
        Some(cordon) => {
            let message = format!(
                "{id} is already cordoned by {}: {}; use another --id, or uncordon it first",
                cordon.owner, cordon.reason
            );
            Failure::new(Code::Denied, message)
        }
        None => failure(error),
    }
}

/// Marks hardware unschedulable, and prints the partitions that still use it.
pub(crate) async fn cordon(
    arguments: Cordon,
    proxy: &ProxyClient,
    format: Format,
    output: &Output,
) -> Result<Code, Failure> {
    let cordon = cordon_request(arguments, proxy).await?;
    let cordoned = match proxy.cordon(&cordon).await {
        Ok(cordoned) => cordoned,
        Err(error) => return Err(cordon_failure(error, &cordon.id, proxy).await),
    };
    let text = || {
        let mut text = format!(
            "{} cordoned by {}: {}\n",
            cordon.id, cordoned.cordon.owner, cordoned.cordon.reason
        );
        if !cordoned.holders.is_empty() {
            text.push_str(&format!("In use: {}\n", holder_names(&cordoned.holders)));
        }
        text
    };
    output.result(&render(format, &cordoned, text)?);
    Ok(Code::Done)
}

/// Marks hardware schedulable.
pub(crate) async fn uncordon(
    arguments: Uncordon,
    proxy: &ProxyClient,
    format: Format,
    output: &Output,
) -> Result<Code, Failure> {
    let id = match (arguments.id, arguments.target) {
        (Some(id), _) => id,
        (None, Some(target)) => {
            let target = parse_target(&target)?;
            target.cordon_id(&find_controller(&target, proxy).await?)
        }
        (None, None) => return Err(Failure::new(Code::Usage, "uncordon requires TARGET or --id")),
    };
    let id = CordonId::new(id).map_err(|error| Failure::because(Code::Usage, "cordon", error))?;
    let lifted = match proxy.uncordon(&id).await {
        Ok(lifted) => lifted,
        Err(error) => return Err(cordon_failure(error, id.as_str(), proxy).await),
    };
    let text = || match &lifted.lifted {
        Some(_) => format!("{id} uncordoned\n"),
        None => format!("{id} was not cordoned\n"),
    };
    output.result(&render(format, &lifted, text)?);
    Ok(Code::Done)
}

/// Header of the comma-separated values; stable, like the names in JSON.
const CSV_HEADINGS: [&str; 7] = ["id", "controller", "machine", "ipu", "owner", "reason", "since"];

/// Lists all cordons, by name.
pub(crate) async fn list(proxy: &ProxyClient, format: Format, output: &Output) -> Result<Code, Failure> {
    let cordons = proxy.cordons().await.map_err(failure)?.cordons;
    match format {
        Format::Name => {
            let names = cordons.iter().map(|cordon| format!("{}\n", cordon.id));
            output.result(&names.collect::<String>());
        }
        Format::Csv => output.result(&csv(&cordons)),
        _ if format.is_text() && cordons.is_empty() => output.say("No cordons found."),
        _ => output.result(&render(format, &cordons, || table(&cordons, clock::now()))?),
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

fn table(cordons: &[CordonDocument], now: Timestamp) -> String {
    let mut table = Table::new(&["NAME", "CONTROLLER", "MACHINE", "IPU", "OWNER", "AGE", "REASON"]);
    for cordon in cordons {
        let [machine, ipu] = hardware(cordon);
        table.row([
            cordon.id.to_string(),
            cordon.controller.to_string(),
            machine,
            ipu,
            cordon.owner.to_string(),
            time::age(cordon.since, now),
            cordon.reason.clone(),
        ]);
    }
    table.text()
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
    let mut cordon = cordon_request(arguments.cordon, proxy).await?;
    // As `kubectl drain` does, it accepts hardware that is cordoned already, for the reason given then.
    let cordons = proxy.cordons().await.map_err(failure)?.cordons;
    let is_same = |existing: &&CordonDocument| existing.id.as_str() == cordon.id;
    if let Some(existing) = cordons.iter().find(is_same) {
        cordon.reason.clone_from(&existing.reason);
    }
    let timeout = arguments.wait_for.map_or(Duration::MAX, Duration::from_secs);
    let mut on_wait = |holders: &[BlockerDocument]| {
        output.status(Some(&format!("In use: {}", holder_names(holders))));
    };
    let drained = proxy.drain(&cordon, timeout, &mut on_wait).await;
    output.status(None);
    let code = match drained {
        Ok(()) => Code::Done,
        Err(error @ ClientError::TimedOut { .. }) => {
            output.warn(&format!("{error}; {} remains cordoned", cordon.id));
            Code::NoCapacity
        }
        Err(error) => return Err(cordon_failure(error, &cordon.id, proxy).await),
    };
    let result = Drained {
        cordon: &cordon.id,
        drained: code == Code::Done,
    };
    let text = || match code {
        Code::Done => format!("{} drained\n", cordon.id),
        _ => String::new(),
    };
    output.result(&render(format, &result, text)?);
    Ok(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_a_controller_a_machine_or_an_ipu() {
        let target = |controller: Option<&str>, machine: Option<&str>, ipu| {
            Some(CordonSelector {
                controller: controller.map(str::to_owned),
                machine: machine.map(str::to_owned),
                ipu,
            })
        };
        assert_eq!(
            CordonSelector::parse("pod:8090"),
            target(Some("pod:8090"), None, None)
        );
        assert_eq!(
            CordonSelector::parse("pod:8090/a1/2"),
            target(Some("pod:8090"), Some("a1"), Some(2))
        );
        assert_eq!(CordonSelector::parse("a1"), target(None, Some("a1"), None));
        assert_eq!(CordonSelector::parse("a1/3"), target(None, Some("a1"), Some(3)));
        for invalid in ["", "/", "pod:8090/", "a1/x", "a1/1/2", "pod:8090/a1/"] {
            assert_eq!(CordonSelector::parse(invalid), None, "{invalid}");
        }
        assert_eq!(
            CordonSelector::parse("a1/3").unwrap().cordon_id("pod:8090"),
            "pod-8090.a1.3"
        );
    }
}
