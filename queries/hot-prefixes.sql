-- Which prefixes do many prompts share, and how often were they found?
--
-- The prompts of an engine as a tree, depth first, the most looked up branch first. A node is a run of blocks that
-- exactly the same prompts have; its children are what comes after it. Only first admissions count, only full blocks,
-- and not the block that holds a prompt's last token. Equal block hashes are equal prefixes, so a salt or an adapter
-- makes another tree.
--
-- group: Reuse
-- needs: block_lookup
-- param: nodes INTEGER = 50 | At most so many nodes an engine, those with the most lookups; their parents are with them.
-- param: at_least_lookups INTEGER = 2 | Leave out nodes with fewer lookups.
-- key: node, parent, tokens, lookups, sessions, hit_tokens, hit_ratio
-- column: engine_id recorded | The engine.
-- column: node derived | Number in the tree, from 1.
-- column: parent derived | The node it goes on from; NULL at a prompt's start.
-- column: depth derived | Nodes above it.
-- column: first_token [tokens] derived | Tokens of the prompt before the node.
-- column: tokens [tokens] derived | Tokens of the node.
-- column: bytes [bytes] derived | Their KV on one rank; NULL if the bytes of a block are unknown.
-- column: lookups derived | Prompts that have it.
-- column: sessions derived | Different session tags of their requests.
-- column: looked_up_tokens [tokens] derived | Tokens of the node in all of these prompts.
-- column: hit_tokens [tokens] derived | Of them, found in the GPU prefix cache; NULL if imported.
-- column: hit_ratio [ratio] derived | hit_tokens over looked_up_tokens.
-- column: repeated_tokens [tokens] derived | Of looked_up_tokens, those after the first time: what a cache that forgets
--     nothing would have found.
-- column: first_ns [ns] recorded | First lookup.
-- column: last_ns [ns] recorded | Last lookup.
-- column: block_hash recorded | Its last block, which names the whole prefix.

WITH prompt AS MATERIALIZED (
    SELECT engine_id, request, time_ns, position, block_hash, hit FROM block_lookup WHERE counted
), block AS MATERIALIZED (
    -- Blocks that the same prompts have get the same name: the set of these prompts.
    SELECT
        engine_id,
        block_hash,
        min(position) AS position,
        count(*) AS lookups,
        bit_xor(hash(request)) AS prompts,
        min(request) AS a_request,
        CASE WHEN count(hit) > 0 THEN count(*) FILTER (hit) END AS hits,
        min(time_ns) AS first_ns,
        max(time_ns) AS last_ns
    FROM prompt
    GROUP BY engine_id, block_hash
    HAVING count(*) >= $at_least_lookups
), node AS MATERIALIZED (
    SELECT
        engine_id,
        lookups,
        prompts,
        min(position) AS first_block,
        count(*) AS blocks,
        any_value(a_request) AS a_request,
        sum(hits)::BIGINT AS hit_blocks,
        min(first_ns) AS first_ns,
        max(last_ns) AS last_ns,
        arg_max(block_hash, position) AS block_hash,
        row_number() OVER (PARTITION BY engine_id ORDER BY lookups DESC, min(position), min(block_hash)) AS rank
    FROM block
    GROUP BY engine_id, lookups, prompts
    QUALIFY rank <= $nodes
), ancestor AS (
    -- The nodes that a node goes on from, and itself: those on the way of one of its prompts. They rank before it.
    SELECT n.engine_id, n.rank, p.rank AS above
    FROM node n
    JOIN prompt q ON q.engine_id = n.engine_id AND q.request = n.a_request AND q.position < n.first_block
    JOIN node p ON p.engine_id = q.engine_id AND p.block_hash = q.block_hash
    UNION ALL
    SELECT engine_id, rank, rank FROM node
), sessions AS (
    SELECT n.engine_id, n.rank, count(DISTINCT r.session) AS sessions
    FROM node n
    JOIN prompt q ON q.engine_id = n.engine_id AND q.block_hash = n.block_hash
    JOIN request r ON r.request = q.request
    GROUP BY ALL
), tree AS (
    SELECT
        engine_id,
        rank,
        max(above) FILTER (above < rank) AS parent,
        count(*) - 1 AS depth,
        list_sort(list(above)) AS path
    FROM ancestor
    GROUP BY engine_id, rank
), numbered AS (
    SELECT *, row_number() OVER (PARTITION BY engine_id ORDER BY path) AS number FROM tree
)
SELECT
    t.engine_id,
    t.number AS node,
    p.number AS parent,
    t.depth,
    n.first_block * e.block_size_tokens AS first_token,
    n.blocks * e.block_size_tokens AS tokens,
    n.blocks * e.block_bytes AS bytes,
    n.lookups,
    coalesce(s.sessions, 0) AS sessions,
    n.lookups * n.blocks * e.block_size_tokens AS looked_up_tokens,
    n.hit_blocks * e.block_size_tokens AS hit_tokens,
    n.hit_blocks / (n.lookups * n.blocks) AS hit_ratio,
    (n.lookups - 1) * n.blocks * e.block_size_tokens AS repeated_tokens,
    n.first_ns,
    n.last_ns,
    n.block_hash
FROM numbered t
JOIN node n USING (engine_id, rank)
JOIN engine e USING (engine_id)
LEFT JOIN sessions s USING (engine_id, rank)
LEFT JOIN numbered p ON p.engine_id = t.engine_id AND p.rank = t.parent
ORDER BY t.engine_id, t.number
