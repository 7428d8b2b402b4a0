//! The proxy as a process at a real API server, with the role that the guide gives it and nothing else.

mod access;
mod competing;
mod installation;
mod list;
mod lost;
mod serving;
