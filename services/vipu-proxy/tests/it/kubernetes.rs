//! The proxy as a process at a real API server, with the shipped role only.

mod access;
mod controller_list;
mod deleted_configmap;
mod failover;
mod installation;
mod serving;
