//! What goes over the wire, as it is written.

mod documents;
