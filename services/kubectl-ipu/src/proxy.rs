//! Access to the proxy with the rights of the caller.
//!
//! The API server removes the `Authorization` header on its way to a Service. Requests that need a token go
//! through a forwarded port instead, with TLS to the proxy. The token is one of the administrator's
//! ServiceAccount, which the caller must be allowed to request.

mod forward;

use std::io::Write as _;
use std::path::PathBuf;

use ipu_proxy_client::{ClientError, ClientOptions, ProxyClient, Stats, TlsFiles, Token};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Pod, Secret, ServiceAccount};
use kube::api::{Api, ListParams, PostParams};
use kube::{Client, ResourceExt as _};
use tempfile::NamedTempFile;
use tokio::task::JoinHandle;

use crate::cli::Global;
use crate::context::Context;
use crate::exit_code::{Code, Failure};
use crate::installation::{self, Installation, PROXIES};

/// Audience of tokens for the proxy.
const AUDIENCE: &str = "vipu-proxy";
/// Validity of a token in seconds: the shortest that the API server issues.
const TOKEN_SECONDS: i64 = 600;
/// Validity of the token of `drain`, which waits for the end of jobs.
const LONG_TOKEN_SECONDS: i64 = 24 * 3600;
/// Name and default number of the port with TLS.
const TLS_PORT: (&str, u16) = ("https", 8443);
/// Selector of the ServiceAccount of an administrator.
const ADMINISTRATOR: &str = "app.kubernetes.io/component=administrator";

/// Section of the guide with the Role of an administrator.
const ROLE_PAGE: &str = "https://github.com/ipu-sdk/ipu-sdk/blob/main/docs/kubectl-ipu.md#use-the-proxy";

/// A client of the proxy through a forwarded port.
pub(crate) struct ProxyAccess {
    pub(crate) client: ProxyClient,
    forward: JoinHandle<()>,
    /// Removed with the access.
    _ca: Option<NamedTempFile>,
}

impl Drop for ProxyAccess {
    fn drop(&mut self) {
        self.forward.abort();
    }
}

/// Connects to the proxy. Needs `get` of its Pods and of its Secret, `create` of `pods/portforward`, and
/// `create` of `serviceaccounts/token` for the administrator.
pub(crate) async fn connect(context: &Context, global: &Global) -> Result<ProxyAccess, Failure> {
    connect_for(context, global, TOKEN_SECONDS)
        .await
        .map_err(name_role)
}

/// Like [`connect`], with access for a day.
pub(crate) async fn connect_long(context: &Context, global: &Global) -> Result<ProxyAccess, Failure> {
    connect_for(context, global, LONG_TOKEN_SECONDS)
        .await
        .map_err(name_role)
}

/// Like [`connect`], for requests that read only: as the operator if there is no administrator.
pub(crate) async fn connect_to_read(context: &Context, global: &Global) -> Result<ProxyAccess, Failure> {
    let installation = find(context, global).await.map_err(name_role)?;
    connect_reader(context, global, &installation)
        .await
        .map_err(name_role)
}

async fn connect_for(context: &Context, global: &Global, seconds: i64) -> Result<ProxyAccess, Failure> {
    let installation = find(context, global).await?;
    let account = account(context, global, &installation).await?;
    connect_as(context, global, &installation, &account, seconds).await
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

/// Connects to the proxy of an examined installation for requests that read only: as the administrator, or as
/// the operator if there is no administrator.
pub(crate) async fn connect_reader(
    context: &Context,
    global: &Global,
    installation: &Installation,
) -> Result<ProxyAccess, Failure> {
    let account = match account(context, global, installation).await {
        Err(failure) if failure.code == Code::NotFound => installation.operator_account.clone(),
        other => other?,
    };
    connect_as(context, global, installation, &account, TOKEN_SECONDS).await
}

async fn find(context: &Context, global: &Global) -> Result<Installation, Failure> {
    installation::find(&context.client, global.operator_namespace.as_deref()).await
}

/// Returns the ServiceAccount of `--service-account`, or of the administrator; unused with a file of a token.
async fn account(context: &Context, global: &Global, installation: &Installation) -> Result<String, Failure> {
    match (&global.service_account, &global.proxy_token_file) {
        (Some(account), _) => Ok(account.clone()),
        (None, Some(_)) => Ok(String::new()),
        (None, None) => {
            let accounts = Api::namespaced(context.client.clone(), &installation.namespace);
            administrator(&accounts, installation).await
        }
    }
}

async fn connect_as(
    context: &Context,
    global: &Global,
    installation: &Installation,
    account: &str,
    seconds: i64,
) -> Result<ProxyAccess, Failure> {
    if global.proxy_token_file.is_some() && global.proxy_ca.is_none() && global.operator_namespace.is_none() {
        return Err(Failure::new(
            Code::Usage,
            "--proxy-token-file requires --operator-namespace or --proxy-ca: an imitated proxy would get the token",
        ));
    }
    let client = &context.client;
    let mut options = ClientOptions::default();
    options.token = Some(match &global.proxy_token_file {
        Some(file) => Token::File(file.clone()),
        None => Token::Value(token(client, installation, account, seconds).await?),
    });
    let (ca_path, ca) = match &global.proxy_ca {
        Some(path) => (path.clone(), None),
        None => ca_file(client, installation).await?,
    };
    options.tls = Some(TlsFiles::new(ca_path));
    let (pod, port) = find_pod(client, installation).await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), &installation.namespace);
    let (address, forward) = forward::forward(pods, pod, port).await?;
    options.connect_to = Some(address);
    let url = format!("https://{}.{}.svc", installation.proxy, installation.namespace);
    let client = ProxyClient::new(&url, options)
        .map_err(|error| Failure::because(Code::Unavailable, "cannot use the proxy", error))?;
    Ok(ProxyAccess {
        client,
        forward,
        _ca: ca,
    })
}

/// Returns the used and available IPUs, through the proxy's port without TLS and the API server. Needs `get`
/// of `services/proxy`.
pub(crate) async fn stats(context: &Context, global: &Global) -> Result<Stats, Failure> {
    read_stats(context, global).await.map_err(name_role)
}

async fn read_stats(context: &Context, global: &Global) -> Result<Stats, Failure> {
    let Installation { namespace, proxy, .. } = find(context, global).await?;
    let path = format!("/api/v1/namespaces/{namespace}/services/http:{proxy}:http/proxy/stats");
    let request = http::Request::get(path).body(Vec::new());
    let request = request.map_err(|error| Failure::because(Code::Bug, "build a request", error))?;
    let stats = context.client.request::<Stats>(request).await;
    stats.map_err(|error| {
        Failure::api(
            format!("read the statistics of Service {namespace}/{proxy}"),
            error,
        )
    })
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
            Failure::api(
                format!("create a token of ServiceAccount {namespace}/{account}"),
                error,
            )
        })?;
    let status = created.status;
    status
        .and_then(|status| status.token)
        .ok_or_else(|| Failure::new(Code::Unavailable, "the API server returned no token"))
}

async fn administrator(
    accounts: &Api<ServiceAccount>,
    installation: &Installation,
) -> Result<String, Failure> {
    let Installation {
        namespace,
        instance,
        operator_account,
        ..
    } = installation;
    let labels = format!("{ADMINISTRATOR},app.kubernetes.io/instance={instance}");
    let found = accounts.list(&ListParams::default().labels(&labels)).await;
    let found = found.map_err(|error| Failure::api(format!("list ServiceAccounts of {namespace}"), error))?;
    found.items.first().map(|account| account.name_any()).ok_or_else(|| {
        let text = format!(
            "the installation in namespace {namespace} has no administrator: set administrator.create=true in the \
             chart, or use --service-account {operator_account}"
        );
        Failure::new(Code::NotFound, text)
    })
}

/// Writes the CA certificates of the proxy's Secret to a file.
async fn ca_file(
    client: &Client,
    installation: &Installation,
) -> Result<(PathBuf, Option<NamedTempFile>), Failure> {
    let Installation {
        namespace,
        proxy_secret,
        ..
    } = installation;
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let secret = secrets.get(proxy_secret).await.map_err(|error| {
        let action =
            format!("read Secret {namespace}/{proxy_secret} for its CA certificates; or use --proxy-ca");
        Failure::api(action, error)
    })?;
    let ca = secret.data.and_then(|mut data| data.remove("ca.crt"));
    let ca = ca.ok_or_else(|| {
        let text = format!("Secret {namespace}/{proxy_secret} has no key ca.crt: use --proxy-ca");
        Failure::new(Code::NotFound, text)
    })?;
    let written = NamedTempFile::new().and_then(|mut file| file.write_all(&ca.0).map(|()| file));
    let file = written.map_err(|error| Failure::because(Code::Host, "write a temporary file", error))?;
    Ok((file.path().to_owned(), Some(file)))
}

/// Returns a ready Pod of the proxy, and its port with TLS.
async fn find_pod(client: &Client, installation: &Installation) -> Result<(String, u16), Failure> {
    let Installation {
        namespace, instance, ..
    } = installation;
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let labels = format!("{PROXIES},app.kubernetes.io/instance={instance}");
    let pods = pods.list(&ListParams::default().labels(&labels)).await;
    let pods =
        pods.map_err(|error| Failure::api(format!("list the Pods of the proxy in {namespace}"), error))?;
    let ready = pods.items.iter().find(|pod| {
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
        let mut conditions = conditions.into_iter().flatten();
        conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
    });
    let Some(pod) = ready else {
        let text = format!("the proxy in namespace {namespace} has no ready Pod: use `kubectl ipu doctor`");
        return Err(Failure::new(Code::Unavailable, text));
    };
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut ports = containers.flat_map(|container| container.ports.iter().flatten());
    let port = ports.find(|port| port.name.as_deref() == Some(TLS_PORT.0));
    let port = port.and_then(|port| u16::try_from(port.container_port).ok());
    Ok((pod.name_any(), port.unwrap_or(TLS_PORT.1)))
}

/// Maps an error of the client to an exit code, as `ipuctl` does.
pub(crate) fn failure(error: ClientError) -> Failure {
    let code = match &error {
        ClientError::Refused { problem, .. } => match (problem.status, problem.code.as_str()) {
            (401 | 403, _) | (_, "NotTheOwner" | "Foreign" | "Quarantined" | "OtherCordon") => Code::Denied,
            (404, _) => Code::NotFound,
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
