//! The hardware of a cordon, as a person names it.

use std::str::FromStr;
use std::time::Duration;

use ipu_core::CordonId;
use serde::Serialize;

use super::exit_code::{Code, Failure};
use crate::api::{BlockerDocument, CordonDocument, CordonRequest, CordonedDocument, UncordonedDocument};
use crate::client::{ClientError, ProxyClient};

/// A controller, one of its machines, or one IPU of a machine: `CONTROLLER`, `CONTROLLER/MACHINE` or
/// `CONTROLLER/MACHINE/IPU`. A sole controller may be omitted.
///
/// ```
/// use ipu_proxy_client::cli::CordonSelector;
///
/// for text in ["pod1:8090", "pod1:8090/a1", "pod1:8090/a1/2", "a1", "a1/2"] {
///     assert!(text.parse::<CordonSelector>().is_ok());
/// }
///
/// let error = "pod1:8090/a1/x".parse::<CordonSelector>().unwrap_err();
/// assert!(error.to_string().starts_with("use CONTROLLER, CONTROLLER/MACHINE or CONTROLLER/MACHINE/IPU"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CordonSelector {
    controller: Option<String>,
    machine: Option<String>,
    ipu: Option<u32>,
}

/// Error of a text that names no hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "use CONTROLLER, CONTROLLER/MACHINE or CONTROLLER/MACHINE/IPU, such as pod1:8090/a1/2; if there is one \
     controller, also MACHINE or MACHINE/IPU"
)]
pub struct CordonSelectorError;

impl FromStr for CordonSelector {
    type Err = CordonSelectorError;

    /// Parses a selector. The name of a controller contains its port, that of a machine does not.
    fn from_str(text: &str) -> Result<Self, CordonSelectorError> {
        let mut parts = text.split('/').peekable();
        let controller = parts.next_if(|part| part.contains(':')).map(str::to_owned);
        let machine = parts.next().map(str::to_owned);
        let ipu = parts.next().map(str::parse).transpose();
        let is_complete = machine.as_ref().is_none_or(|machine| !machine.is_empty());
        match ipu {
            Ok(ipu) if is_complete && parts.next().is_none() => Ok(Self {
                controller,
                machine,
                ipu,
            }),
            _ => Err(CordonSelectorError),
        }
    }
}

impl CordonSelector {
    /// Cordons the hardware. `id` is the name of the cordon, which follows from the hardware otherwise.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let settings = vipu_proxy::Settings::simulated("pod16");
    /// # let server = vipu_proxy::Proxy::start(settings.check()?).await?;
    /// # let proxy = ipu_proxy_client::ProxyClient::new(&server.addr().to_string(), Default::default())?;
    /// use ipu_proxy_client::cli::CordonSelector;
    ///
    /// // The proxy has one controller, which may be omitted.
    /// let selector: CordonSelector = "a1/2".parse()?;
    /// let cordon = selector.cordon(None, "link errors".into(), &proxy).await?.cordon;
    /// assert_eq!((cordon.machine, cordon.ipu), (Some("a1".parse()?), Some(2)));
    /// assert!(cordon.id.as_str().ends_with(".a1.2"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Code::Usage`] if the controller is omitted and the proxy has several; [`Code::Denied`] if another
    /// person has a cordon of the name; and the errors of the proxy.
    pub async fn cordon(
        &self,
        id: Option<String>,
        reason: String,
        proxy: &ProxyClient,
    ) -> Result<CordonedDocument, Failure> {
        let request = self.request(id, reason, proxy).await?;
        match proxy.cordon(&request).await {
            Ok(cordoned) => Ok(cordoned),
            Err(error) => Err(explained(error, &request.id, proxy).await),
        }
    }

    /// Lifts the cordon of this name, else that of the selected hardware. Returns its name as well.
    ///
    /// # Errors
    ///
    /// As for [`cordon`](Self::cordon); [`Code::Usage`] without a name and a selector.
    pub async fn uncordon(
        selector: Option<&Self>,
        id: Option<String>,
        proxy: &ProxyClient,
    ) -> Result<(CordonId, UncordonedDocument), Failure> {
        let id = match (id, selector) {
            (Some(id), _) => id,
            (None, Some(selector)) => selector.id_at(&selector.controller(proxy).await?),
            (None, None) => return Err(Failure::new(Code::Usage, "uncordon requires TARGET or --id")),
        };
        let id = CordonId::new(id).map_err(|error| Failure::because(Code::Usage, "cordon", error))?;
        match proxy.uncordon(&id).await {
            Ok(lifted) => Ok((id, lifted)),
            Err(error) => Err(explained(error, id.as_str(), proxy).await),
        }
    }

    /// Cordons the hardware and waits until no partition uses it. As `kubectl drain` does, it accepts
    /// hardware that is cordoned already, for the reason given then. `on_wait` is called with the partitions
    /// that still use the hardware, and their owners.
    ///
    /// # Errors
    ///
    /// As for [`cordon`](Self::cordon); [`Code::NoCapacity`] after the timeout, and the hardware remains
    /// cordoned.
    pub async fn drain(
        &self,
        id: Option<String>,
        reason: String,
        timeout: Option<Duration>,
        proxy: &ProxyClient,
        on_wait: &mut (dyn FnMut(String) + Send),
    ) -> Result<DrainedCordon, Failure> {
        let mut request = self.request(id, reason, proxy).await?;
        let cordons = proxy.cordons().await?.cordons;
        if let Some(existing) = cordons.iter().find(|cordon| cordon.id.as_str() == request.id) {
            request.reason.clone_from(&existing.reason);
        }
        let mut on_wait = |holders: &[BlockerDocument]| on_wait(format!("In use: {}", holder_names(holders)));
        let timeout = timeout.unwrap_or(Duration::MAX);
        match proxy.drain(&request, timeout, &mut on_wait).await {
            Ok(()) => Ok(DrainedCordon { cordon: request.id }),
            Err(error @ ClientError::TimedOut { .. }) => {
                let text = format!("{error}; {} remains cordoned", request.id);
                Err(Failure::new(Code::NoCapacity, text))
            }
            Err(error) => Err(explained(error, &request.id, proxy).await),
        }
    }

    async fn request(
        &self,
        id: Option<String>,
        reason: String,
        proxy: &ProxyClient,
    ) -> Result<CordonRequest, Failure> {
        let controller = self.controller(proxy).await?;
        let id = id.unwrap_or_else(|| self.id_at(&controller));
        let mut request = CordonRequest::new(id, controller, reason);
        request.machine.clone_from(&self.machine);
        request.ipu = self.ipu;
        Ok(request)
    }

    fn id_at(&self, controller: &str) -> String {
        let machine = self.machine.as_ref().map(|machine| format!(".{machine}"));
        let ipu = self.ipu.map(|ipu| format!(".{ipu}"));
        let (machine, ipu) = (machine.unwrap_or_default(), ipu.unwrap_or_default());
        let id = format!("{controller}{machine}{ipu}");
        id.replace(|c: char| !c.is_ascii_alphanumeric() && !"._-".contains(c), "-")
    }

    /// Returns the named controller, else the only one of the proxy.
    async fn controller(&self, proxy: &ProxyClient) -> Result<String, Failure> {
        if let Some(controller) = &self.controller {
            return Ok(controller.clone());
        }
        let list = proxy.controllers().await?.controllers.into_iter();
        let mut names: Vec<String> = list.map(|status| status.controller.name.to_string()).collect();
        match names.len() {
            1 => Ok(names.remove(0)),
            _ => {
                let names = names.join(", ");
                let text = format!("the proxy has several controllers, use CONTROLLER/MACHINE: {names}");
                Err(Failure::new(Code::Usage, text))
            }
        }
    }
}

/// Returns the failure of a cordon or uncordon; one about another cordon of the same name says who cordoned
/// it and why.
async fn explained(error: ClientError, id: &str, proxy: &ProxyClient) -> Failure {
    if error.code() != Some("OtherCordon") {
        return error.into();
    }
    let list = proxy.cordons().await.map(|list| list.cordons).unwrap_or_default();
    match list.iter().find(|cordon| cordon.id.as_str() == id) {
        Some(CordonDocument { owner, reason, .. }) => {
            let fix = "use another --id, or uncordon it first";
            let text = format!("{id} is already cordoned by {owner}: {reason}; {fix}");
            Failure::new(Code::Denied, text)
        }
        None => error.into(),
    }
}

/// Returns the partitions that use cordoned hardware, with their owners.
fn holder_names(holders: &[BlockerDocument]) -> String {
    let name = |holder: &BlockerDocument| match &holder.owner {
        Some(owner) => format!("{} ({}/{})", holder.id, owner.namespace, owner.name),
        None => holder.id.to_string(),
    };
    holders.iter().map(name).collect::<Vec<_>>().join(", ")
}

/// Returns the cordon and the partitions that still use its hardware, as lines.
///
/// ```
/// use ipu_proxy_client::CordonedDocument;
/// use ipu_proxy_client::cli::cordoned_text;
///
/// let cordoned: CordonedDocument = serde_json::from_str(
///     r#"{"cordon":{"id":"link","controller":"pod1:8090","machine":"a1","ipu":1,"owner":"anonymous",
///                   "reason":"link errors","since":1795982444329},
///         "holders":[{"id":"training",
///                     "owner":{"kind":"IPUJob","namespace":"default","name":"mnist","uid":"1"},
///                     "size":8,"until":1795986042520}]}"#,
/// )?;
/// let text = "link cordoned by anonymous: link errors\nIn use: training (default/mnist)\n";
/// assert_eq!(cordoned_text(&cordoned), text);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[must_use]
pub fn cordoned_text(cordoned: &CordonedDocument) -> String {
    let CordonDocument {
        id, owner, reason, ..
    } = &cordoned.cordon;
    let mut text = format!("{id} cordoned by {owner}: {reason}\n");
    if !cordoned.holders.is_empty() {
        text.push_str(&format!("In use: {}\n", holder_names(&cordoned.holders)));
    }
    text
}

/// Returns whether a cordon was lifted, as a line.
#[must_use]
pub fn uncordoned_text(id: &CordonId, lifted: &UncordonedDocument) -> String {
    match &lifted.lifted {
        Some(_) => format!("{id} uncordoned\n"),
        None => format!("{id} was not cordoned\n"),
    }
}

/// Result of a drain: no partition uses the hardware any more.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct DrainedCordon {
    /// Name of the cordon.
    pub cordon: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cordon_selects_a_controller_a_machine_or_an_ipu() {
        let id = |text: &str| {
            let selector = text.parse::<CordonSelector>().ok()?;
            let controller = selector.controller.clone().unwrap_or_else(|| "only:1".into());
            Some(selector.id_at(&controller))
        };
        for (text, expected) in [
            ("pod:8090", "pod-8090"),
            ("pod:8090/a1/2", "pod-8090.a1.2"),
            ("a1", "only-1.a1"),
            ("a1/3", "only-1.a1.3"),
        ] {
            assert_eq!(id(text).as_deref(), Some(expected), "{text}");
        }
        for invalid in ["", "/", "pod:8090/", "a1/x", "a1/1/2", "pod:8090/a1/"] {
            assert_eq!(id(invalid), None, "{invalid}");
        }
    }
}
