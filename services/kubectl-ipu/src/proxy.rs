//! Access to the proxy with the rights of the caller.
//!
//! The API server removes the `Authorization` header on its way to a Service. Requests go through a
//! forwarded port instead, with TLS to the Pod that leads. The token is one of the administrator's
//! ServiceAccount, which the caller must be allowed to request.

mod forward;

use std::io::Write as _;

use ipu_proxy_client::{ClientOptions, ProxyClient, Readiness, TlsFiles, Token};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Pod, Secret, ServiceAccount};
use kube::api::{Api, ListParams, PostParams};
use kube::{Client, ResourceExt as _};
use tempfile::NamedTempFile;
use tokio::task::JoinHandle;

use crate::cli::Global;
use crate::context::Context;
use crate::exit_code::{Code, Failure, api_failure};
use crate::installation::{self, Installation, PROXY_SELECTOR};

/// Audience of tokens for the proxy.
const AUDIENCE: &str = "vipu-proxy";
/// Name and default number of the port with TLS.
const TLS_PORT: (&str, u16) = ("https", 8443);
/// Selector of the ServiceAccount of an administrator.
const ADMINISTRATOR: &str = "app.kubernetes.io/component=administrator";
/// Section of the guide with the Role of an administrator.
const ROLE_PAGE: &str = "https://github.com/ipu-sdk/ipu-sdk/blob/main/docs/kubectl-ipu.md#use-the-proxy";

/// Use of a connection, which determines its account and the validity of its token.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Reads only: as the operator if there is no administrator.
    Read,
    /// Changes the ledger.
    Change,
    /// Waits for the end of jobs.
    Drain,
}

impl Access {
    /// Returns the validity of the token in seconds. The API server issues none below ten minutes.
    const fn token_seconds(self) -> i64 {
        match self {
            Self::Read | Self::Change => 600,
            Self::Drain => 24 * 3600,
        }
    }
}

/// A client of the leading proxy through a forwarded port.
pub(crate) struct ProxyAccess {
    pub(crate) client: ProxyClient,
    forward: JoinHandle<()>,
    /// Removed with the access: each connection reads it.
    _ca: Option<NamedTempFile>,
}

impl Drop for ProxyAccess {
    fn drop(&mut self) {
        self.forward.abort();
    }
}

/// Finds the installation and connects to its proxy. Needs `list` of Deployments, Pods and ServiceAccounts,
/// `get` of the proxy's Secret, `create` of `pods/portforward`, and `create` of `serviceaccounts/token`.
pub(crate) async fn connect(
    context: &Context,
    global: &Global,
    access: Access,
) -> Result<ProxyAccess, Failure> {
    let connected = async {
        let installation = installation::find(&context.client, global.operator_namespace.as_deref()).await?;
        connect_to(context, global, &installation, access).await
    };
    connected.await.map_err(name_role)
}

/// Adds the Role with the missing right to a refusal of the API server, which names the right only.
fn name_role(failure: Failure) -> Failure {
    if failure.code != Code::Denied {
        return failure;
    }
    let text = failure.chain();
    let fix = format!("ask an administrator with the Role ipu-administrator, which permits it: {ROLE_PAGE}");
    Failure::new(Code::Denied, format!("{text}; {fix}"))
}

/// Connects to the proxy of an installation.
pub(crate) async fn connect_to(
    context: &Context,
    global: &Global,
    installation: &Installation,
    access: Access,
) -> Result<ProxyAccess, Failure> {
    if global.proxy_token_file.is_some() && global.proxy_ca.is_none() && global.operator_namespace.is_none() {
        return Err(Failure::new(
            Code::Usage,
            "--proxy-token-file requires --operator-namespace or --proxy-ca: another proxy could get the token",
        ));
    }
    let client = &context.client;
    let mut options = ClientOptions::default();
    options.token = Some(match &global.proxy_token_file {
        Some(file) => Token::File(file.clone()),
        None => {
            let account = match &global.service_account {
                Some(account) => account.clone(),
                None => account(client, installation, access).await?,
            };
            Token::Value(token(client, installation, &account, access.token_seconds()).await?)
        }
    });
    let own_ca = match &global.proxy_ca {
        Some(_) => None,
        None => Some(ca_file(client, installation).await?),
    };
    let ca = own_ca.as_ref().map(|file| file.path().to_owned());
    options.tls = ca.or_else(|| global.proxy_ca.clone()).map(TlsFiles::new);
    connect_to_leader(client, installation, options, own_ca).await
}

/// Connects to the ready Pod that leads: the other replicas stand by, and refuse all requests.
async fn connect_to_leader(
    client: &Client,
    installation: &Installation,
    options: ClientOptions,
    ca: Option<NamedTempFile>,
) -> Result<ProxyAccess, Failure> {
    let namespace = &installation.namespace;
    let url = format!("https://{}.{namespace}.svc", installation.proxy_service().1);
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let labels = format!(
        "{PROXY_SELECTOR},app.kubernetes.io/instance={}",
        installation.instance()
    );
    let listed = pods.list(&ListParams::default().labels(&labels)).await;
    let listed =
        listed.map_err(|error| api_failure(format!("list the Pods of the proxy in {namespace}"), error))?;
    let mut states = Vec::new();
    for pod in listed.items.iter().filter(|pod| is_ready(pod)) {
        let (address, forward) = forward::forward(pods.clone(), pod.name_any(), tls_port(pod)).await?;
        let mut options = options.clone();
        options.connect_to = Some(address);
        let client = ProxyClient::new(&url, options)
            .map_err(|error| Failure::because(Code::Unavailable, "cannot use the proxy", error))?;
        let state = match client.ready().await {
            Ok(Readiness::Leads) => {
                return Ok(ProxyAccess {
                    client,
                    forward,
                    _ca: ca,
                });
            }
            Ok(Readiness::StandsBy) => "stands by".to_owned(),
            Err(error) => Failure::from(error).chain(),
        };
        forward.abort();
        states.push(format!("{} {state}", pod.name_any()));
    }
    let text = if states.is_empty() {
        format!("the proxy in namespace {namespace} has no ready Pod: use `kubectl ipu doctor`")
    } else {
        format!(
            "no Pod of the proxy in namespace {namespace} leads: {}; a replica takes over within seconds, so repeat \
             the command, and use `kubectl ipu doctor` if that fails",
            states.join(", ")
        )
    };
    Err(Failure::new(Code::Unavailable, text))
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn tls_port(pod: &Pod) -> u16 {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut ports = containers.flat_map(|container| container.ports.iter().flatten());
    let port = ports.find(|port| port.name.as_deref() == Some(TLS_PORT.0));
    port.and_then(|port| u16::try_from(port.container_port).ok())
        .unwrap_or(TLS_PORT.1)
}

/// Requests a token of a ServiceAccount.
async fn token(
    client: &Client,
    installation: &Installation,
    account: &str,
    seconds: i64,
) -> Result<String, Failure> {
    let namespace = &installation.namespace;
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    let request = TokenRequest {
        spec: Some(TokenRequestSpec {
            audiences: Some(vec![AUDIENCE.into()]),
            expiration_seconds: Some(seconds),
            bound_object_ref: None,
        }),
        ..TokenRequest::default()
    };
    let created = accounts
        .create_token_request(account, &PostParams::default(), &request)
        .await
        .map_err(|error| {
            let action = format!("create a token of ServiceAccount {namespace}/{account}");
            api_failure(action, error)
        })?;
    let token = created.status.and_then(|status| status.token);
    token.ok_or_else(|| Failure::new(Code::Unavailable, "the API server returned no token"))
}

/// Returns the ServiceAccount of the administrator.
async fn account(client: &Client, installation: &Installation, access: Access) -> Result<String, Failure> {
    let namespace = &installation.namespace;
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    let labels = format!(
        "{ADMINISTRATOR},app.kubernetes.io/instance={}",
        installation.instance()
    );
    let found = accounts.list(&ListParams::default().labels(&labels)).await;
    let found = found.map_err(|error| api_failure(format!("list ServiceAccounts of {namespace}"), error))?;
    let operator = installation.operator_account();
    match found.items.first() {
        Some(account) => Ok(account.name_any()),
        None if access == Access::Read => Ok(operator.to_owned()),
        None => {
            let text = format!(
                "the installation in namespace {namespace} has no administrator: set administrator.create=true in \
                 the chart, or use --service-account {operator}"
            );
            Err(Failure::new(Code::NotFound, text))
        }
    }
}

/// Writes the CA certificates of the proxy's Secret to a temporary file.
async fn ca_file(client: &Client, installation: &Installation) -> Result<NamedTempFile, Failure> {
    let (namespace, name) = (&installation.namespace, installation.proxy_secret());
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let secret = secrets.get(name).await.map_err(|error| {
        let action = format!("read Secret {namespace}/{name} for its CA certificates; or use --proxy-ca");
        api_failure(action, error)
    })?;
    let ca = secret.data.and_then(|mut data| data.remove("ca.crt"));
    let ca = ca.ok_or_else(|| {
        let text = format!("Secret {namespace}/{name} has no key ca.crt: use --proxy-ca");
        Failure::new(Code::NotFound, text)
    })?;
    let written = NamedTempFile::new().and_then(|mut file| file.write_all(&ca.0).map(|()| file));
    written.map_err(|error| Failure::because(Code::Host, "write a temporary file", error))
}
