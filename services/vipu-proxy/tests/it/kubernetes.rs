//! The proxy as a process at a real API server, with the role that the guide gives it and nothing else.

mod access;
mod controller_list;
mod deleted_configmap;
mod failover;
mod installation;
mod serving;
