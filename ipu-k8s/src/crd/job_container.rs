//! The container of a Pod that runs the process of the job, among those of injectors and helpers.

use std::collections::BTreeMap;

/// Annotation that names the container of the job, as `kubectl logs` and `kubectl exec` read it.
pub(crate) const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

/// Returns the container of the job among `containers`, the names in a Pod's spec in their order: the one
/// that the annotation `kubectl.kubernetes.io/default-container` names if it exists, else the first. Its end
/// is the end of the worker or launcher. Returns `None` if there are no containers.
///
/// ```
/// use ipu_k8s::crd::job_container;
///
/// let annotations = [("kubectl.kubernetes.io/default-container".into(), "main".into())].into();
/// assert_eq!(job_container(Some(&annotations), ["proxy", "main"]), Some("main"));
/// assert_eq!(job_container(None, ["proxy", "main"]), Some("proxy"));
/// ```
pub fn job_container<'a>(
    annotations: Option<&BTreeMap<String, String>>,
    containers: impl IntoIterator<Item = &'a str, IntoIter: Clone>,
) -> Option<&'a str> {
    let mut containers = containers.into_iter();
    let named = annotations.and_then(|annotations| annotations.get(DEFAULT_CONTAINER));
    let is_named = |container: &&str| named.is_some_and(|named| named == container);
    containers.clone().find(is_named).or_else(|| containers.next())
}
