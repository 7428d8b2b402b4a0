//! Guide for embedders, step by step: a scheduler with a policy, a store and a transport of its own.
//!
//! Begin with [`overview`]. The pages are those of the user guide.

/// Makes a module of each page. The definitions of links in a page lead to files of the repository: the ones
/// here come first and so replace them.
macro_rules! pages {
    ($($page:ident)*) => {$(
        /// [benchmarks]: https://github.com/ipu-sdk/ipu-sdk/blob/main/docs/performance.md#placement-policies
        /// [crate]: crate::guide::overview#create-the-crate
        /// [ipuctl]: https://github.com/ipu-sdk/ipu-sdk/blob/main/docs/ipuctl.md
        /// [policy]: crate::guide::policy
        /// [preemption]: https://github.com/ipu-sdk/ipu-sdk/blob/main/docs/sharing.md#preemption
        /// [proof]: crate::guide::proof
        /// [proxy]: https://github.com/ipu-sdk/ipu-sdk/blob/main/docs/proxy.md
        /// [scheduler]: crate::guide::scheduler
        /// [scores]: https://github.com/ipu-sdk/ipu-sdk/blob/main/docs/placement.md#scoring-a-policy
        /// [simulator]: https://github.com/ipu-sdk/ipu-sdk/blob/main/docs/simulator.md
        /// [store]: crate::guide::store
        /// [topologies]: https://github.com/ipu-sdk/ipu-sdk/blob/main/docs/placement.md#topologies-as-text
        /// [transport]: crate::guide::transport
        /// [vipu-api]: https://github.com/ipu-sdk/ipu-sdk/blob/main/docs/reference/vipu-api.md
        #[allow(rustdoc::invalid_codeblock_attributes, reason = "`norun` and `file:` are for tests of the pages")]
        #[doc = include_str!(concat!("../guide/", stringify!($page), ".md"))]
        pub mod $page {}
    )*};
}

pages!(overview policy scheduler store transport proof languages);
