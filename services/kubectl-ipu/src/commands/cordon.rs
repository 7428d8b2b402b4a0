//! `kubectl ipu cordon`, `uncordon` and `drain`: hardware on which no new partition is placed.

use std::time::Duration;

use ipu_core::CordonId;
use ipu_proxy_client::{BlockerDocument, ClientError, CordonDocument, CordonRequest, ProxyClient};
use serde::Serialize;

use crate::cli::{Cordon, Format};
use crate::exit_code::{Code, Failure};
use crate::output::{self, render};
use crate::proxy::failure;

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
    fn parse(text: &str) -> Result<Self, Failure> {
        let mut parts = text.split('/').peekable();
        let controller = parts.next_if(|part| part.contains(':')).map(str::to_owned);
        let machine = parts.next().map(str::to_owned);
        let ipu = parts.next().map(str::parse).transpose();
        let is_named = controller.is_some() || machine.is_some();
        let is_complete = machine.as_ref().is_none_or(|machine| !machine.is_empty());
        match ipu {
            Ok(ipu) if is_named && is_complete && parts.next().is_none() => Ok(Self {
                controller,
                machine,
                ipu,
            }),
            _ => Err(Failure::new(
                Code::Usage,
                format!(
                    "invalid target {text:?}: use CONTROLLER, CONTROLLER/MACHINE or CONTROLLER/MACHINE/IPU, such as \
                     pod1:8090/a1/2; if there is one controller, also MACHINE or MACHINE/IPU"
                ),
            )),
        }
    }

    /// Returns the default name of a cordon of this target, that of `ipuctl`.
    fn cordon_id(&self, controller: &str) -> String {
        let machine = self.machine.as_ref().map(|machine| format!(".{machine}"));
        let ipu = self.ipu.map(|ipu| format!(".{ipu}"));
        let id = format!(
            "{controller}{}{}",
            machine.unwrap_or_default(),
            ipu.unwrap_or_default()
        );
        id.replace(|c: char| !c.is_ascii_alphanumeric() && !"._-".contains(c), "-")
    }

    /// Returns the controller of the target, else the only controller of the proxy.
    async fn controller(&self, proxy: &ProxyClient) -> Result<String, Failure> {
        if let Some(controller) = &self.controller {
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
}

async fn request(arguments: &Cordon, proxy: &ProxyClient) -> Result<CordonRequest, Failure> {
    let target = CordonSelector::parse(&arguments.target)?;
    let controller = target.controller(proxy).await?;
    let id = arguments
        .id
        .clone()
        .unwrap_or_else(|| target.cordon_id(&controller));
    let mut cordon = CordonRequest::new(id, controller, arguments.reason.clone());
    cordon.machine = target.machine;
    cordon.ipu = target.ipu;
    Ok(cordon)
}

/// Returns the partitions that use cordoned hardware, with their owners.
fn holder_names(holders: &[BlockerDocument]) -> String {
    let name = |holder: &BlockerDocument| match &holder.owner {
        Some(owner) => format!("{} ({}/{})", holder.id, owner.namespace, owner.name),
        None => holder.id.to_string(),
    };
    holders.iter().map(name).collect::<Vec<_>>().join(", ")
}

/// Marks hardware unschedulable, and prints the partitions that still use it.
pub(crate) async fn cordon(arguments: &Cordon, proxy: &ProxyClient, format: Format) -> Result<Code, Failure> {
    let cordon = request(arguments, proxy).await?;
    let cordoned = proxy.cordon(&cordon).await.map_err(failure)?;
    let text = || {
        let CordonDocument { owner, reason, .. } = &cordoned.cordon;
        let mut text = format!("{} cordoned by {owner}: {reason}\n", cordon.id);
        if !cordoned.holders.is_empty() {
            text.push_str(&format!("In use: {}\n", holder_names(&cordoned.holders)));
        }
        text
    };
    output::result(&render(format, &cordoned, text)?)?;
    Ok(Code::Done)
}

/// Marks hardware schedulable.
pub(crate) async fn uncordon(
    target: Option<&str>,
    id: Option<String>,
    proxy: &ProxyClient,
    format: Format,
) -> Result<Code, Failure> {
    let id = match (id, target) {
        (Some(id), _) => id,
        (None, Some(target)) => {
            let target = CordonSelector::parse(target)?;
            target.cordon_id(&target.controller(proxy).await?)
        }
        (None, None) => return Err(Failure::new(Code::Usage, "uncordon requires TARGET or --id")),
    };
    let id = CordonId::new(id).map_err(|error| Failure::because(Code::Usage, "cordon", error))?;
    let lifted = proxy.uncordon(&id).await.map_err(failure)?;
    let text = || match &lifted.lifted {
        Some(_) => format!("{id} uncordoned\n"),
        None => format!("{id} was not cordoned\n"),
    };
    output::result(&render(format, &lifted, text)?)?;
    Ok(Code::Done)
}

/// Marks hardware unschedulable and waits until no partition uses it.
pub(crate) async fn drain(
    arguments: &Cordon,
    wait_for: Option<u64>,
    proxy: &ProxyClient,
    format: Format,
) -> Result<Code, Failure> {
    let mut cordon = request(arguments, proxy).await?;
    // As `kubectl drain` does, it accepts hardware that is cordoned already, for the reason given then.
    let cordons = proxy.cordons().await.map_err(failure)?.cordons;
    if let Some(existing) = cordons.iter().find(|existing| existing.id.as_str() == cordon.id) {
        cordon.reason.clone_from(&existing.reason);
    }
    let mut shown = String::new();
    let mut on_wait = |holders: &[BlockerDocument]| {
        let line = format!("In use: {}", holder_names(holders));
        if line != shown {
            output::say(&line);
            shown = line;
        }
    };
    let timeout = wait_for.map_or(Duration::MAX, Duration::from_secs);
    let code = match proxy.drain(&cordon, timeout, &mut on_wait).await {
        Ok(()) => Code::Done,
        Err(error @ ClientError::TimedOut { .. }) => {
            output::say(&format!("warning: {error}; {} remains cordoned", cordon.id));
            Code::NoCapacity
        }
        Err(error) => return Err(failure(error)),
    };
    let result = Drained {
        cordon: &cordon.id,
        drained: code == Code::Done,
    };
    let text = || match code {
        Code::Done => format!("{} drained\n", cordon.id),
        _ => String::new(),
    };
    output::result(&render(format, &result, text)?)?;
    Ok(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_a_controller_a_machine_or_an_ipu() {
        let id = |text: &str| {
            CordonSelector::parse(text)
                .ok()
                .map(|target| target.cordon_id("pod:8090"))
        };
        assert_eq!(id("pod:8090").as_deref(), Some("pod-8090"));
        assert_eq!(id("pod:8090/a1/2").as_deref(), Some("pod-8090.a1.2"));
        assert_eq!(id("a1").as_deref(), Some("pod-8090.a1"));
        assert_eq!(id("a1/3").as_deref(), Some("pod-8090.a1.3"));
        for invalid in ["", "/", "pod:8090/", "a1/x", "a1/1/2", "pod:8090/a1/"] {
            assert_eq!(id(invalid), None, "{invalid}");
        }
    }
}
