//! Files to weights.
