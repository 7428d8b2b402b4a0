//! One stream of watch events for several namespaces. A reflector store takes one stream, in which the list
//! of one namespace must not replace the objects of the others.

use std::collections::HashSet;
use std::fmt::Debug;

use futures::{Stream, StreamExt as _, stream};
use k8s_openapi::NamespaceResourceScope;
use kube::api::Api;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::reflector::Store;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;

type WatchResult<K> = watcher::Result<Event<K>>;

/// Watches the objects of `namespaces`, or of all if there are none, for `store`. The stream begins with one
/// list, once all namespaces are listed. A later list of a namespace is events of the objects that it changes
/// and deletes. `observe` receives every original event with its namespace.
pub(super) fn watch<K, O>(
    client: &Client,
    namespaces: &[String],
    config: &watcher::Config,
    store: Store<K>,
    observe: O,
) -> impl Stream<Item = WatchResult<K>> + Send + use<K, O>
where
    O: Fn(Option<&str>, &WatchResult<K>) + Clone + Send + 'static,
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    K: Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    let mut scopes: Vec<Option<String>> = namespaces.iter().cloned().map(Some).collect();
    if scopes.is_empty() {
        scopes.push(None);
    }
    let streams: Vec<_> = scopes
        .iter()
        .cloned()
        .enumerate()
        .map(|(index, namespace)| {
            let api = match &namespace {
                Some(namespace) => Api::namespaced(client.clone(), namespace),
                None => Api::all(client.clone()),
            };
            let observe = observe.clone();
            watcher(api, config.clone())
                .default_backoff()
                .inspect(move |event| observe(namespace.as_deref(), event))
                .map(move |event| (index, event))
                .boxed()
        })
        .collect();
    let mut merger = Merger::new(scopes, store);
    stream::select_all(streams).flat_map(move |(index, event)| stream::iter(merger.merge(index, event)))
}

/// Returns whether the API server forbids the list or watch.
pub(super) fn is_forbidden(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(error) | watcher::Error::WatchStartFailed(error) => {
            matches!(error, kube::Error::Api(status) if status.code == 403)
        }
        _ => false,
    }
}

/// Watch of one namespace, or of all.
struct Scope<K> {
    namespace: Option<String>,
    /// Objects of the list in progress.
    listing: Vec<K>,
    is_listed: bool,
}

struct Merger<K: Resource<DynamicType = ()> + 'static> {
    scopes: Vec<Scope<K>>,
    store: Store<K>,
    is_complete: bool,
}

impl<K: Resource<DynamicType = ()> + Clone> Merger<K> {
    fn new(namespaces: Vec<Option<String>>, store: Store<K>) -> Self {
        let scope = |namespace| Scope {
            namespace,
            listing: Vec::new(),
            is_listed: false,
        };
        Self {
            scopes: namespaces.into_iter().map(scope).collect(),
            store,
            is_complete: false,
        }
    }

    /// Returns the events of the merged stream for an event of one scope.
    fn merge(&mut self, index: usize, event: WatchResult<K>) -> Vec<WatchResult<K>> {
        let is_one_of_several = self.scopes.len() > 1;
        let Some(scope) = self.scopes.get_mut(index) else {
            return Vec::new();
        };
        match event {
            Ok(Event::Init) => {
                scope.listing.clear();
                Vec::new()
            }
            Ok(Event::InitApply(object)) => {
                scope.listing.push(object);
                Vec::new()
            }
            Ok(Event::InitDone) => {
                scope.is_listed = true;
                if self.is_complete {
                    self.relist(index)
                } else {
                    self.complete()
                }
            }
            event @ Ok(Event::Apply(_) | Event::Delete(_)) if self.is_complete => vec![event],
            // Other namespaces are not listed yet.
            Ok(Event::Apply(object)) => {
                scope
                    .listing
                    .retain(|other| other.name_any() != object.name_any());
                scope.listing.push(object);
                Vec::new()
            }
            Ok(Event::Delete(object)) => {
                scope.listing.retain(|other| other.uid() != object.uid());
                Vec::new()
            }
            Err(error) => {
                // The other namespaces do not wait for one that the operator may not watch.
                scope.is_listed |= is_one_of_several && is_forbidden(&error);
                let mut events = vec![Err(error)];
                events.extend(self.complete());
                events
            }
        }
    }

    /// Returns the first list of all scopes, if it is complete now.
    fn complete(&mut self) -> Vec<WatchResult<K>> {
        if self.is_complete || !self.scopes.iter().all(|scope| scope.is_listed) {
            return Vec::new();
        }
        self.is_complete = true;
        let objects = self
            .scopes
            .iter_mut()
            .flat_map(|scope| std::mem::take(&mut scope.listing));
        let objects = objects.map(Event::InitApply);
        let list = [Event::Init].into_iter().chain(objects).chain([Event::InitDone]);
        list.map(Ok).collect()
    }

    /// Returns the deletions and changes in a later list of one scope.
    fn relist(&mut self, index: usize) -> Vec<WatchResult<K>> {
        let Some(scope) = self.scopes.get_mut(index) else {
            return Vec::new();
        };
        let listing = std::mem::take(&mut scope.listing);
        let listed: HashSet<Option<String>> = listing.iter().map(ResourceExt::uid).collect();
        let is_gone = |object: &K| {
            let is_in_scope = scope.namespace.is_none() || scope.namespace == object.namespace();
            is_in_scope && !listed.contains(&object.uid())
        };
        let gone = self.store.state_filter(is_gone);
        let gone = gone.into_iter().map(|object| Event::Delete((*object).clone()));
        gone.chain(listing.into_iter().map(Event::Apply))
            .map(Ok)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::runtime::reflector;

    use super::*;

    fn object(namespace: &str, name: &str) -> ConfigMap {
        let mut object = ConfigMap::default();
        object.metadata.namespace = Some(namespace.to_owned());
        object.metadata.name = Some(name.to_owned());
        object.metadata.uid = Some(format!("{namespace}-{name}"));
        object
    }

    fn forbidden() -> watcher::Error {
        let status = kube::core::Status::failure("no", "Forbidden")
            .with_code(403)
            .boxed();
        watcher::Error::InitialListFailed(kube::Error::Api(status))
    }

    /// Merges the events of two namespaces, applies them to a store, and describes them.
    fn merge(events: Vec<(usize, WatchResult<ConfigMap>)>) -> (Vec<String>, Vec<String>) {
        let (store, mut writer) = reflector::store();
        let namespaces = ["a", "b"].map(|namespace| Some(namespace.to_owned()));
        let mut merger = Merger::new(namespaces.into(), store.clone());
        let mut described = Vec::new();
        for (scope, event) in events {
            for merged in merger.merge(scope, event) {
                let name = |object: &ConfigMap| object.uid().expect("a uid");
                described.push(match &merged {
                    Ok(Event::Init) => "init".to_owned(),
                    Ok(Event::InitApply(object)) => format!("list {}", name(object)),
                    Ok(Event::InitDone) => "done".to_owned(),
                    Ok(Event::Apply(object)) => format!("apply {}", name(object)),
                    Ok(Event::Delete(object)) => format!("delete {}", name(object)),
                    Err(_) => "error".to_owned(),
                });
                if let Ok(event) = merged {
                    writer.apply_watcher_event(&event);
                }
            }
        }
        let mut stored: Vec<String> = store.state().iter().filter_map(|object| object.uid()).collect();
        stored.sort();
        (described, stored)
    }

    fn list(scope: usize, objects: &[ConfigMap]) -> Vec<(usize, WatchResult<ConfigMap>)> {
        let objects = objects.iter().cloned().map(Event::InitApply);
        let list = [Event::Init].into_iter().chain(objects).chain([Event::InitDone]);
        list.map(|event| (scope, Ok(event))).collect()
    }

    #[test]
    fn the_first_list_is_complete_once_every_namespace_is_listed() {
        let first_namespace = || {
            let mut events = list(0, &[object("a", "x"), object("a", "y")]);
            events.push((0, Ok(Event::Delete(object("a", "y")))));
            events.push((0, Ok(Event::Apply(object("a", "z")))));
            events
        };
        assert_eq!(merge(first_namespace()).0, [""; 0]);
        let mut events = first_namespace();
        events.extend(list(1, &[object("b", "x")]));
        let (merged, stored) = merge(events);
        assert_eq!(merged, ["init", "list a-x", "list a-z", "list b-x", "done"]);
        assert_eq!(stored, ["a-x", "a-z", "b-x"]);
    }

    #[test]
    fn a_later_list_of_one_namespace_deletes_only_objects_of_that_namespace() {
        let mut events = list(0, &[object("a", "x"), object("a", "y")]);
        events.extend(list(1, &[object("b", "x")]));
        events.extend(list(0, &[object("a", "y")]));
        let (merged, stored) = merge(events);
        assert_eq!(merged[5..], ["delete a-x", "apply a-y"]);
        assert_eq!(stored, ["a-y", "b-x"]);
    }

    #[test]
    fn a_namespace_that_may_not_be_watched_does_not_delay_the_others() {
        let mut events = list(0, &[object("a", "x")]);
        events.push((1, Err(forbidden())));
        let (merged, stored) = merge(events);
        assert_eq!(merged, ["error", "init", "list a-x", "done"]);
        assert_eq!(stored, ["a-x"]);
    }
}
