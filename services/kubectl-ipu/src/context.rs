//! The cluster, the namespace and the rights of the caller, from its kubeconfig.

use ipu_k8s::crd::IpuJob;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::GroupVersionKind;
use kube::{Client, Config};

use crate::cli::Global;
use crate::exit_code::{Code, Failure, api_failure};

/// Label of the Pods of a job with its name.
pub(crate) const JOB_NAME: &str = "graphcore.ai/ipujob-name";
/// Label of the Pods of a job with their role.
pub(crate) const ROLE: &str = "graphcore.ai/role";
/// Label with the index of the instance.
pub(crate) const INSTANCE: &str = "graphcore.ai/instance";
/// Label with the index of the worker in its instance.
pub(crate) const WORKER: &str = "graphcore.ai/worker";

/// A connection to the API server as the caller.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) client: Client,
    pub(crate) namespace: String,
}

impl Context {
    /// Connects as the kubeconfig of `--kubeconfig`, else of `KUBECONFIG`, else of the home directory says.
    pub(crate) async fn open(global: &Global) -> Result<Self, Failure> {
        let options = KubeConfigOptions {
            context: global.context.clone(),
            ..KubeConfigOptions::default()
        };
        let invalid = |error| {
            Failure::because(
                Code::NotFound,
                "cannot use the kubeconfig: set KUBECONFIG or --kubeconfig",
                error,
            )
        };
        let config = match &global.kubeconfig {
            Some(path) => {
                let kubeconfig = Kubeconfig::read_from(path).map_err(invalid)?;
                Config::from_custom_kubeconfig(kubeconfig, &options).await
            }
            None => Config::from_kubeconfig(&options).await,
        };
        let mut config = config.map_err(invalid)?;
        // As kubectl does, it reports an error at once. Watches repeat themselves.
        config.default_retry = false;
        let namespace = global.namespace.clone();
        let namespace = namespace.unwrap_or_else(|| config.default_namespace.clone());
        let client = Client::try_from(config)
            .map_err(|error| Failure::because(Code::Unavailable, "cannot connect", error))?;
        Ok(Self { client, namespace })
    }

    /// Checks that the API server answers, also by a refusal.
    pub(crate) async fn probe(&self) -> Result<(), Failure> {
        match self.client.apiserver_version().await {
            Ok(_) | Err(kube::Error::Api(_)) => Ok(()),
            Err(error) => Err(api_failure("reach the API server", error)),
        }
    }

    /// Returns the IPUJobs of the namespace.
    pub(crate) fn jobs(&self) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, &job_resource())
    }

    /// Returns the IPUJobs of all namespaces.
    pub(crate) fn all_jobs(&self) -> Api<DynamicObject> {
        Api::all_with(self.client.clone(), &job_resource())
    }

    /// Returns an IPUJob.
    pub(crate) async fn job(&self, name: &str) -> Result<DynamicObject, Failure> {
        let found = self.jobs().get(name).await;
        found.map_err(|error| api_failure(format!("read IPUJob {}/{name}", self.namespace), error))
    }

    /// Returns the Pods of a job, by instance and worker; launchers last.
    pub(crate) async fn pods(&self, job: &str) -> Result<Vec<Pod>, Failure> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let params = ListParams::default().labels(&format!("{JOB_NAME}={job}"));
        let listed = api.list(&params).await;
        let mut pods = listed
            .map_err(|error| api_failure(format!("list the Pods of {}/{job}", self.namespace), error))?
            .items;
        pods.sort_by_key(|pod| (index(pod, INSTANCE), is_launcher(pod), index(pod, WORKER)));
        Ok(pods)
    }
}

/// Returns whether the Pod is a launcher.
pub(crate) fn is_launcher(pod: &Pod) -> bool {
    label(pod, ROLE) == Some("launcher")
}

/// Returns the number in a label, or 0.
pub(crate) fn index(pod: &Pod, name: &str) -> u32 {
    label(pod, name).and_then(|value| value.parse().ok()).unwrap_or(0)
}

fn label<'a>(pod: &'a Pod, name: &str) -> Option<&'a str> {
    pod.metadata.labels.as_ref()?.get(name).map(String::as_str)
}

/// Returns the resource of IPUJobs.
pub(crate) fn job_resource() -> ApiResource {
    let (group, version) = IpuJob::API_VERSION.split_once('/').unwrap_or_default();
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, IpuJob::KIND), "ipujobs")
}
