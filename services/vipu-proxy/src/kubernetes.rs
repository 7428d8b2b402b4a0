//! The proxy in a Kubernetes cluster: the ledger in a ConfigMap, tokens of service accounts, the list of controllers that is
//! watched, and owners that are IPUJobs.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ipu_core::{Claim, Entry, OwnerLiveness};
use ipu_k8s::controller_list::{ControllersOptions, ControllersText, ControllersWatch};
use ipu_k8s::ipujob_liveness::IpuJobLiveness;
use ipu_k8s::kube::Config;
use ipu_k8s::store::{ConfigMapOptions, ConfigMapStore};
use ipu_k8s::token_review::{Callers, ServiceAccount, TokenReviewOptions, TokenReviewer};
use ipu_ledger::{LedgerStore, Liveness, StoreError, UsageLog};

use crate::app::App;
use crate::auth::{AuthError, Authenticator, Credentials, Identity};
use crate::problem::chain;
use crate::settings::KubernetesChoice;
use crate::store::AnyStore;

/// How long the start waits for the list of controllers; without it requests wait, and with it they go on.
const FIRST_LIST: Duration = Duration::from_secs(10);

/// The cluster that the proxy runs in, or that the kubeconfig names.
pub(crate) struct Cluster {
    config: Config,
    choice: KubernetesChoice,
    namespace: String,
}

impl Cluster {
    pub(crate) async fn connect(choice: &KubernetesChoice) -> Result<Self, String> {
        let config = Config::infer().await.map_err(|error| chain(&error))?;
        let namespace = choice.namespace.clone();
        Ok(Self {
            namespace: namespace.unwrap_or_else(|| config.default_namespace.clone()),
            config,
            choice: choice.clone(),
        })
    }

    /// The ledger, which is the log of what was used too, and the most bytes of it for the queued requests of one namespace.
    pub(crate) fn store(&self) -> Result<(AnyStore, Arc<dyn UsageLog>, usize), StoreError> {
        let mut options = ConfigMapOptions::of(&self.namespace);
        if let Some(name) = &self.choice.tracker {
            options.name.clone_from(name);
        }
        let share = options.namespace_share();
        let store = Arc::new(ConfigMapStore::new(self.config.clone(), options)?);
        Ok((
            AnyStore::shared(Arc::clone(&store) as Arc<dyn LedgerStore>),
            store,
            share,
        ))
    }

    pub(crate) fn authenticator(&self) -> Result<Arc<dyn Authenticator>, String> {
        let accounts = self.choice.accounts.iter().map(|text| text.parse());
        let accounts: BTreeSet<ServiceAccount> = accounts
            .collect::<Result<_, _>>()
            .map_err(|error| chain(&error))?;
        let (callers, scope) = if accounts.is_empty() {
            (Callers::Anybody, Scope::OwnNamespace)
        } else {
            (Callers::Accounts(accounts), Scope::AllNamespaces)
        };
        let options = TokenReviewOptions::new(&self.choice.audience, callers);
        let reviewer = TokenReviewer::new(self.config.clone(), options).map_err(|error| chain(&error))?;
        Ok(Arc::new(TokenReviewAuth { reviewer, scope }))
    }

    /// Whether owners are alive: IPUJobs by the API server, everybody else by `others`.
    pub(crate) fn liveness(&self, others: Arc<dyn Liveness>) -> Result<Arc<dyn Liveness>, String> {
        let jobs = IpuJobLiveness::new(self.config.clone()).map_err(|error| chain(&error))?;
        Ok(Arc::new(AnyLiveness { jobs, others }))
    }

    /// The list of controllers, if it is in a ConfigMap.
    pub(crate) fn controllers(&self) -> Result<Option<ControllersWatch>, String> {
        let Some(name) = &self.choice.controllers else {
            return Ok(None);
        };
        let options = ControllersOptions::new(&self.namespace, name);
        let watch = ipu_k8s::controller_list::watch(self.config.clone(), options);
        watch.map(Some).map_err(|error| chain(&error))
    }
}

/// Applies every change of the list, until the proxy stops. Answers after the first, or some time.
pub(crate) async fn follow(mut watch: ControllersWatch, app: &Arc<App>) -> tokio::task::JoinHandle<()> {
    match tokio::time::timeout(FIRST_LIST, watch.next()).await {
        Ok(text) => apply(&text, app).await,
        Err(_) => tracing::warn!("the list of controllers has not been answered yet"),
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
            Ok(()) => tracing::info!("applied a change of the list of controllers"),
            Err(error) => {
                tracing::error!(%error, "the list of controllers is not applied; the one before stays")
            }
        },
        ControllersText::Absent { detail } => {
            tracing::warn!(detail, "there is no list of controllers; the one before stays");
        }
        _ => {}
    }
}

/// Which owners a service account may act for.
#[derive(Clone, Copy)]
enum Scope {
    /// Those of every namespace: the account is listed.
    AllNamespaces,
    /// Those of the account's namespace: no account is listed.
    OwnNamespace,
}

/// Tokens of service accounts.
struct TokenReviewAuth {
    reviewer: TokenReviewer,
    scope: Scope,
}

#[async_trait]
impl Authenticator for TokenReviewAuth {
    async fn authenticate(&self, credentials: Credentials<'_>) -> Result<Identity, AuthError> {
        use ipu_k8s::token_review::AuthError as Refusal;
        let token = credentials.bearer.ok_or(AuthError::Missing)?;
        match self.reviewer.review(token).await {
            Ok(identity) => {
                let who = Identity::new(identity.user);
                Ok(match self.scope {
                    Scope::AllNamespaces => who,
                    // A user that is no service account has no namespace.
                    Scope::OwnNamespace => who.within(identity.account.map(|account| account.namespace)),
                })
            }
            Err(Refusal::NotAllowed { user }) => Err(AuthError::Forbidden { name: user }),
            Err(Refusal::Unavailable { detail }) => Err(AuthError::Unavailable { detail }),
            Err(error) => Err(AuthError::Unknown {
                detail: error.to_string(),
            }),
        }
    }
}

/// What either knows: of the owners of the other, both know nothing.
struct AnyLiveness {
    jobs: IpuJobLiveness,
    others: Arc<dyn Liveness>,
}

#[async_trait]
impl Liveness for AnyLiveness {
    async fn life_of(&self, entry: &Entry) -> OwnerLiveness {
        match self.jobs.life_of(entry).await {
            // Only the API server ends an IPUJob: a lease that lapsed while it did not answer does not.
            OwnerLiveness::Unknown if entry.owner.as_ref().is_some_and(IpuJobLiveness::judges) => {
                OwnerLiveness::Unknown
            }
            OwnerLiveness::Unknown => self.others.life_of(entry).await,
            known => known,
        }
    }

    async fn claims(&self) -> Vec<Claim> {
        self.jobs.claims().await
    }
}

#[cfg(test)]
mod tests {
    use ipu_core::{
        CallWindow, Change, ControllersSnapshot, JobKey, LedgerState, Owner, PartitionSpec, QueuePolicy,
        Request, Timestamp,
    };

    use super::*;

    /// An entry that an owner of this kind asked for.
    fn entry(kind: &str) -> Entry {
        let owner = Owner {
            kind: kind.into(),
            job: JobKey::new("default", "training", "1").unwrap(),
        };
        let request = Request::of_instance(owner, 0, PartitionSpec::of_size(4.try_into().unwrap()));
        let window = CallWindow {
            now: Timestamp::from_millis(0),
            settle: Duration::from_secs(30),
        };
        let step = LedgerState::default()
            .request(
                &request,
                &ControllersSnapshot::default(),
                &QueuePolicy::default(),
                window,
            )
            .unwrap();
        match step.changes.first() {
            Some(Change::Put(entry)) => Entry::clone(entry),
            other => panic!("{other:?}"),
        }
    }

    /// Judges every owner dead, as a lapsed lease does.
    struct LapsedLiveness;

    #[async_trait]
    impl Liveness for LapsedLiveness {
        async fn life_of(&self, _: &Entry) -> OwnerLiveness {
            OwnerLiveness::Dead
        }
    }

    #[tokio::test]
    async fn a_lapsed_lease_never_ends_an_ipujob_of_which_the_api_server_says_nothing() {
        rustls::crypto::ring::default_provider().install_default().ok();
        // A port on which no process listens.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        drop(listener);
        let jobs = IpuJobLiveness::new(Config::new(url.parse().unwrap())).unwrap();
        let both = AnyLiveness {
            jobs,
            others: Arc::new(LapsedLiveness),
        };
        for (kind, life) in [("IPUJob", OwnerLiveness::Unknown), ("Job", OwnerLiveness::Dead)] {
            let entry = entry(kind);
            assert_eq!(both.life_of(&entry).await, life, "{kind}");
        }
    }
}
