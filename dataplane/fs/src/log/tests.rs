mod changes;
mod properties;
