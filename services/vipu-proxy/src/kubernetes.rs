//! Kubernetes integration: the ledger in a ConfigMap, service account tokens, the watched list of
//! controllers, and the liveness of IPUJobs.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ipu_allocator::{Liveness, Store, StoreError};
use ipu_core::allocator::{Claim, Entry, OwnerLiveness};
use ipu_core::{ErrorChain, PartitionId};
use ipu_k8s::controller_list::{ControllersOptions, ControllersText, ControllersWatch};
use ipu_k8s::kube::Config;
use ipu_k8s::liveness::KubernetesLiveness;
use ipu_k8s::store::{ConfigMapOptions, ConfigMapStore};
use ipu_k8s::token_review::{Callers, ServiceAccount, TokenReviewOptions, TokenReviewer};

use crate::app::App;
use crate::auth::{AuthError, Authenticator, Credentials, Identity};
use crate::settings::KubernetesChoice;

/// Time that the start waits for the list of controllers; requests queue until it arrives.
const FIRST_LIST_TIMEOUT: Duration = Duration::from_secs(10);

/// Cluster of the proxy, or of the kubeconfig.
pub(crate) struct Cluster {
    config: Config,
    choice: KubernetesChoice,
    namespace: String,
}

impl Cluster {
    pub(crate) async fn connect(choice: &KubernetesChoice) -> Result<Self, String> {
        let config = Config::infer()
            .await
            .map_err(|error| ErrorChain(&error).to_string())?;
        let namespace = choice.namespace.clone();
        Ok(Self {
            namespace: namespace.unwrap_or_else(|| config.default_namespace.clone()),
            config,
            choice: choice.clone(),
        })
    }

    /// Returns the store, and the byte limit of the queued requests of one namespace.
    pub(crate) fn store(&self) -> Result<(Arc<dyn Store>, usize), StoreError> {
        let mut options = ConfigMapOptions::in_namespace(&self.namespace);
        if let Some(name) = &self.choice.tracker {
            options.name.clone_from(name);
        }
        let share = options.namespace_share();
        let store = ConfigMapStore::new(self.config.clone(), options)?;
        Ok((Arc::new(store), share))
    }

    pub(crate) fn authenticator(&self) -> Result<Arc<dyn Authenticator>, String> {
        let parse = |list: &[String]| -> Result<BTreeSet<ServiceAccount>, String> {
            let accounts = list.iter().map(|text| text.parse());
            accounts
                .collect::<Result<_, _>>()
                .map_err(|error| ErrorChain(&error).to_string())
        };
        let accounts = parse(&self.choice.accounts)?;
        let administrators = parse(&self.choice.administrators)?;
        let (callers, scope) = if accounts.is_empty() {
            (Callers::AnyAuthenticated, Scope::OwnNamespace)
        } else {
            let callers = accounts.union(&administrators).cloned().collect();
            (Callers::Accounts(callers), Scope::AllNamespaces)
        };
        let options = TokenReviewOptions::new(&self.choice.audience, callers);
        let reviewer = TokenReviewer::new(self.config.clone(), options)
            .map_err(|error| ErrorChain(&error).to_string())?;
        Ok(Arc::new(TokenReviewAuth {
            reviewer,
            scope,
            administrators,
        }))
    }

    /// Returns the liveness of owners: of IPUJobs and IPUPartitions by the API server, of all others by
    /// `others`.
    pub(crate) fn liveness(&self, others: Arc<dyn Liveness>) -> Result<Arc<dyn Liveness>, String> {
        let kubernetes =
            KubernetesLiveness::new(self.config.clone()).map_err(|error| ErrorChain(&error).to_string())?;
        Ok(Arc::new(AnyLiveness { kubernetes, others }))
    }

    /// Returns the watch of the list of controllers, if it is in a ConfigMap.
    pub(crate) fn controllers(&self) -> Result<Option<ControllersWatch>, String> {
        let Some(name) = &self.choice.controllers else {
            return Ok(None);
        };
        let options = ControllersOptions::new(&self.namespace, name);
        let watch = ipu_k8s::controller_list::watch(self.config.clone(), options);
        watch.map(Some).map_err(|error| ErrorChain(&error).to_string())
    }
}

/// Applies every change of the list until the proxy stops. Returns after the first list or a timeout.
pub(crate) async fn watch_controllers(
    mut watch: ControllersWatch,
    app: &Arc<App>,
) -> tokio::task::JoinHandle<()> {
    match tokio::time::timeout(FIRST_LIST_TIMEOUT, watch.next()).await {
        Ok(text) => apply(&text, app).await,
        Err(_) => tracing::warn!("the list of controllers has not arrived yet"),
    }
    let app = Arc::clone(app);
    tokio::spawn(async move {
        let mut stopping = app.stopping();
        loop {
            let text = tokio::select! {
                _ = stopping.wait_for(|stop| *stop) => return,
                text = watch.next() => text,
            };
            apply(&text, &app).await;
        }
    })
}

async fn apply(text: &ControllersText, app: &App) {
    match text {
        ControllersText::List(list) => match app.replace_controllers(list).await {
            Ok(()) => tracing::info!("applied a changed list of controllers"),
            Err(error) => {
                tracing::error!(%error, "cannot apply the list of controllers; keeping the previous one")
            }
        },
        ControllersText::Absent { detail } => {
            tracing::warn!(
                detail,
                "the list of controllers is missing; keeping the previous one"
            );
        }
    }
}

/// Owners that a service account may act for.
#[derive(Clone, Copy)]
enum Scope {
    /// Owners of every namespace, because the account is listed.
    AllNamespaces,
    /// Owners of the namespace of the account, because no account is listed.
    OwnNamespace,
}

/// Authenticator of service account tokens by TokenReview.
struct TokenReviewAuth {
    reviewer: TokenReviewer,
    scope: Scope,
    administrators: BTreeSet<ServiceAccount>,
}

#[async_trait]
impl Authenticator for TokenReviewAuth {
    async fn authenticate(&self, credentials: Credentials<'_>) -> Result<Identity, AuthError> {
        use ipu_k8s::token_review::AuthError as ReviewError;
        let token = credentials.bearer.ok_or(AuthError::Missing)?;
        match self.reviewer.review(token).await {
            Ok(reviewed) => {
                let identity = Identity::new(reviewed.user);
                let is_administrator = |account: &ServiceAccount| self.administrators.contains(account);
                if reviewed.account.as_ref().is_some_and(is_administrator) {
                    return Ok(identity.into_administrator());
                }
                Ok(match self.scope {
                    Scope::AllNamespaces => identity,
                    // A user other than a service account has no namespace.
                    Scope::OwnNamespace => identity.within(reviewed.account.map(|account| account.namespace)),
                })
            }
            Err(ReviewError::NotAllowed { user }) => Err(AuthError::Forbidden { name: user }),
            Err(ReviewError::Unavailable { detail }) => Err(AuthError::Unavailable { detail }),
            Err(error) => Err(AuthError::Unknown {
                detail: error.to_string(),
            }),
        }
    }
}

/// Liveness of IPUJobs by the API server, and of all other owners by `others`.
struct AnyLiveness {
    kubernetes: KubernetesLiveness,
    others: Arc<dyn Liveness>,
}

#[async_trait]
impl Liveness for AnyLiveness {
    async fn liveness_of(&self, entry: &Entry) -> OwnerLiveness {
        match self.kubernetes.liveness_of(entry).await {
            // Only the API server can judge an IPUJob dead; a lease that lapsed during its outage cannot.
            OwnerLiveness::Unknown if entry.owner.as_ref().is_some_and(KubernetesLiveness::supports) => {
                OwnerLiveness::Unknown
            }
            OwnerLiveness::Unknown => self.others.liveness_of(entry).await,
            liveness => liveness,
        }
    }

    async fn claims(&self) -> Vec<Claim> {
        self.kubernetes.claims().await
    }

    fn forget_silence(&self, partitions: &[&PartitionId]) {
        self.others.forget_silence(partitions);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Creates an entry of an owner of this kind.
    fn entry(kind: &str) -> Entry {
        let job = json!({"namespace": "default", "name": "training", "uid": "1"});
        serde_json::from_value(json!({
            "id": "p", "owner": {"kind": kind, "job": job}, "spec": {"size": 4}, "phase": {"is": "queued"},
            "ticket": 1, "since": 0,
        }))
        .unwrap()
    }

    /// Judges every owner dead, as a lapsed lease does.
    struct LapsedLiveness;

    #[async_trait]
    impl Liveness for LapsedLiveness {
        async fn liveness_of(&self, _: &Entry) -> OwnerLiveness {
            OwnerLiveness::Dead
        }
    }

    #[tokio::test]
    async fn a_lapsed_lease_never_ends_an_ipujob_while_the_api_server_is_unavailable() {
        rustls::crypto::ring::default_provider().install_default().ok();
        // A port on which no process listens.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        drop(listener);
        let kubernetes = KubernetesLiveness::new(Config::new(url.parse().unwrap())).unwrap();
        let both = AnyLiveness {
            kubernetes,
            others: Arc::new(LapsedLiveness),
        };
        for (kind, expected) in [("IPUJob", OwnerLiveness::Unknown), ("Job", OwnerLiveness::Dead)] {
            let entry = entry(kind);
            assert_eq!(both.liveness_of(&entry).await, expected, "{kind}");
        }
    }
}
