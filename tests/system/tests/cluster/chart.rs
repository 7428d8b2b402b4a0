//! The chart `deploy/helm/ipu-operator`: its rendering by Helm 3 and Helm 4, and its operations on a node.

mod cert_manager;
mod defects;
mod edits;
mod installation;
mod kueue;
mod ledger;
mod lifecycle;
mod manifests;
mod matrix;
mod original;
mod overlap;
mod planted;
mod refusals;
mod removal;
mod rendering;
mod schemas;
mod server;
mod values;
mod values_on_node;
