//! One function a parser: takes any bytes and must not panic.
