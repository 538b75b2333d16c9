//! The command table.

use proptest::prelude::*;

use super::*;

#[test]
fn every_name_is_found_in_every_case() {
    let table = table();
    for (number, command) in table.commands().iter().enumerate() {
        let mixed: String = command
            .spec
            .name
            .chars()
            .enumerate()
            .map(|(at, c)| if at % 2 == 0 { c.to_ascii_uppercase() } else { c })
            .collect();
        for name in [command.spec.name.to_owned(), command.spec.name.to_ascii_uppercase(), mixed] {
            let found = table.find(name.as_bytes()).map(|(number, _)| usize::from(number));
            assert_eq!(found, Some(number), "{name}");
        }
    }
}

/// The commands of Redis 7.0.
const REDIS: &str = "\
    acl append asking auth bgrewriteaof bgsave bitcount bitfield bitfield_ro bitop bitpos \
    blmove blmpop blpop brpop brpoplpush bzmpop bzpopmax bzpopmin client cluster command config \
    copy dbsize debug decr decrby del discard dump echo eval eval_ro evalsha evalsha_ro exec \
    exists expire expireat expiretime failover fcall fcall_ro flushall flushdb function geoadd \
    geodist geohash geopos georadius georadius_ro georadiusbymember georadiusbymember_ro \
    geosearch geosearchstore get getbit getdel getex getrange getset hdel hello hexists hget \
    hgetall hincrby hincrbyfloat hkeys hlen hmget hmset hrandfield hscan hset hsetnx hstrlen \
    hvals incr incrby incrbyfloat info keys lastsave latency lcs lindex linsert llen lmove \
    lmpop lolwut lpop lpos lpush lpushx lrange lrem lset ltrim memory mget migrate module \
    monitor move mset msetnx multi object persist pexpire pexpireat pexpiretime pfadd pfcount \
    pfdebug pfmerge pfselftest ping psetex psubscribe psync pttl publish pubsub punsubscribe \
    quit randomkey readonly readwrite rename renamenx replconf replicaof reset restore \
    restore-asking role rpop rpoplpush rpush rpushx sadd save scan scard script sdiff \
    sdiffstore select set setbit setex setnx setrange shutdown sinter sintercard sinterstore \
    sismember slaveof slowlog smembers smismember smove sort sort_ro spop spublish srandmember \
    srem sscan ssubscribe strlen subscribe substr sunion sunionstore sunsubscribe swapdb sync \
    time touch ttl type unlink unsubscribe unwatch wait watch xack xadd xautoclaim xclaim xdel \
    xgroup xinfo xlen xpending xrange xread xreadgroup xrevrange xsetid xtrim zadd zcard zcount \
    zdiff zdiffstore zincrby zinter zintercard zinterstore zlexcount zmpop zmscore zpopmax \
    zpopmin zrandmember zrange zrangebylex zrangebyscore zrangestore zrank zrem zremrangebylex \
    zremrangebyrank zremrangebyscore zrevrange zrevrangebylex zrevrangebyscore zrevrank zscan \
    zscore zunion zunionstore";

/// The page that says what is missing.
const PAGE: &str = include_str!("../../../../docs/howto/serve-redis-faster.md");

#[test]
fn the_page_lists_each_command_of_redis_that_is_missing() {
    let section = PAGE.split("### What is missing").nth(1).and_then(|rest| rest.split("\n###").next());
    let listed: Vec<&str> = section.expect("a section").split('`').skip(1).step_by(2).collect();
    let table = table();
    for name in REDIS.split(' ') {
        let is_missing = table.find(name.as_bytes()).is_none();
        assert_eq!(listed.contains(&name), is_missing, "{name}");
    }
}

proptest! {
    #[test]
    fn a_name_that_is_none_is_not_found(name in prop::collection::vec(any::<u8>(), 0..12), flip in 0usize..12, bit in 0u8..8) {
        let table = table();
        let known = |name: &[u8]| table.commands().iter().any(|command| command.spec.name.as_bytes().eq_ignore_ascii_case(name));
        prop_assert_eq!(table.find(&name).is_some(), known(&name));
        // Names that differ from one by a bit.
        let command = table.commands()[name.len() * 17 % table.commands().len()];
        let mut near = command.spec.name.as_bytes().to_vec();
        let at = flip % near.len();
        near[at] ^= 1 << bit;
        prop_assert_eq!(table.find(&near).is_some(), known(&near), "{:?}", near);
    }
}
