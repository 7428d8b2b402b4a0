//! `ipuctl cordon`, `uncordon`, `drain`.

use std::time::Duration;

use ipu_core::CordonId;
use ipu_proxy_client::{BlockerDocument, ClientError, CordonRequest, ProxyClient};
use serde::Serialize;

use super::failure;
use crate::cli::{Cordon, Drain, Format, Uncordon};
use crate::exit_code::{Code, Failure};
use crate::output::Output;
use crate::table::render;

/// What is cordoned: a controller, a machine of it, an IPU of that.
#[derive(Debug, PartialEq, Eq)]
struct CordonSelector {
    controller: Option<String>,
    machine: Option<String>,
    ipu: Option<u32>,
}

/// What a drain came to.
#[derive(Debug, Serialize)]
struct Drained<'a> {
    #[serde(rename = "exclusion")]
    cordon: &'a str,
    drained: bool,
}

impl CordonSelector {
    /// A controller has its port in its name, a machine has none.
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('/').peekable();
        let controller = parts.next_if(|part| part.contains(':')).map(str::to_owned);
        let machine = parts.next().map(str::to_owned);
        let ipu = parts.next().map(str::parse).transpose().ok()?;
        let named = controller.is_some() || machine.is_some();
        let whole = machine.as_ref().is_none_or(|machine| !machine.is_empty());
        (named && whole && parts.next().is_none()).then_some(Self {
            controller,
            machine,
            ipu,
        })
    }

    /// The name of its cordon unless it is given another, of the characters that such a name may have.
    fn id(&self, controller: &str) -> String {
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

fn target_of(text: &str) -> Result<CordonSelector, Failure> {
    CordonSelector::parse(text).ok_or_else(|| {
        let message = format!(
            "{text:?}: write CONTROLLER:PORT, CONTROLLER:PORT/MACHINE or CONTROLLER:PORT/MACHINE/IPU"
        );
        Failure::new(Code::Usage, message)
    })
}

/// The controller that is meant: the one that was named, or the only one.
async fn controller_of(target: &CordonSelector, proxy: &ProxyClient) -> Result<String, Failure> {
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
            format!("name the controller too, before a slash: {}", names.join(", ")),
        )),
    }
}

async fn cordon_of(arguments: Cordon, proxy: &ProxyClient) -> Result<CordonRequest, Failure> {
    let target = target_of(&arguments.target)?;
    let controller = controller_of(&target, proxy).await?;
    let id = arguments.id.unwrap_or_else(|| target.id(&controller));
    let mut cordon = CordonRequest::new(id, controller, arguments.reason);
    cordon.machine = target.machine;
    cordon.ipu = target.ipu;
    Ok(cordon)
}

fn names(holders: &[BlockerDocument]) -> String {
    let name = |holder: &BlockerDocument| match &holder.owner {
        Some(owner) => format!("{} of {owner}", holder.id),
        None => holder.id.to_string(),
    };
    holders.iter().map(name).collect::<Vec<_>>().join(", ")
}

/// Has something get nothing new, and says who keeps what he has there.
pub(super) async fn cordon(
    arguments: Cordon,
    proxy: &ProxyClient,
    format: Format,
    output: &Output,
) -> Result<Code, Failure> {
    let cordon = cordon_of(arguments, proxy).await?;
    let cordoned = proxy.cordon(&cordon).await.map_err(failure)?;
    let text = || {
        let mut text = format!("{} cordoned\n", cordon.id);
        for holder in &cordoned.holders {
            text.push_str(&format!("still held: {}\n", names(std::slice::from_ref(holder))));
        }
        text
    };
    output.result(&render(format, &cordoned, text)?);
    Ok(Code::Done)
}

/// Lets something get something new again.
pub(super) async fn uncordon(
    arguments: Uncordon,
    proxy: &ProxyClient,
    format: Format,
    output: &Output,
) -> Result<Code, Failure> {
    let id = match (arguments.id, arguments.target) {
        (Some(id), _) => id,
        (None, Some(target)) => {
            let target = target_of(&target)?;
            target.id(&controller_of(&target, proxy).await?)
        }
        (None, None) => return Err(Failure::new(Code::Usage, "name what to uncordon")),
    };
    let id = CordonId::new(id).map_err(|error| Failure::because(Code::Usage, "cordon", error))?;
    let lifted = proxy.uncordon(&id).await.map_err(failure)?;
    let text = || match &lifted.lifted {
        Some(_) => format!("{id} uncordoned\n"),
        None => format!("{id} was not cordoned\n"),
    };
    output.result(&render(format, &lifted, text)?);
    Ok(Code::Done)
}

/// Has something get nothing new, and waits until nobody holds anything there.
pub(super) async fn drain(
    arguments: Drain,
    proxy: &ProxyClient,
    format: Format,
    output: &Output,
) -> Result<Code, Failure> {
    let cordon = cordon_of(arguments.cordon, proxy).await?;
    let patience = arguments.wait_for.map_or(Duration::MAX, Duration::from_secs);
    let mut tell = |holders: &[BlockerDocument]| {
        output.status(Some(&format!("still held: {}", names(holders))));
    };
    let drained = proxy.drain(&cordon, patience, &mut tell).await;
    output.status(None);
    let code = match drained {
        Ok(()) => Code::Done,
        Err(error @ ClientError::Late { .. }) => {
            output.warn(&format!("{error}; {} stays cordoned", cordon.id));
            Code::NoRoom
        }
        Err(error) => return Err(failure(error)),
    };
    let done = Drained {
        cordon: &cordon.id,
        drained: code == Code::Done,
    };
    let text = || match code {
        Code::Done => format!("{} drained\n", cordon.id),
        _ => String::new(),
    };
    output.result(&render(format, &done, text)?);
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
        for broken in ["", "/", "pod:8090/", "a1/x", "a1/1/2", "pod:8090/a1/"] {
            assert_eq!(CordonSelector::parse(broken), None, "{broken}");
        }
        assert_eq!(
            CordonSelector::parse("a1/3").unwrap().id("pod:8090"),
            "pod-8090.a1.3"
        );
    }
}
