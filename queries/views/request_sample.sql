-- A sample of a client's request with n > 1.
--
-- The API process gives an id to the client's request, and engines get `0_ID`, `1_ID` and so on. So the client's request has a
-- row without an engine in table `request`, and each sample one without a client's id.
--
-- needs: request
-- column: request recorded | The sample, as its engine knows it.
-- column: parent derived | The client's request.
-- column: sample derived | Its number among the samples, from 0.

SELECT s.request, p.request AS parent, s.sample
FROM (
    SELECT
        request,
        regexp_extract(internal_id, '^[0-9]+_(.+)$', 1) AS parent_id,
        try_cast(regexp_extract(internal_id, '^([0-9]+)_.+$', 1) AS INTEGER) AS sample
    FROM request
) AS s
JOIN request AS p ON p.internal_id = s.parent_id
WHERE p.queued_ns IS NULL
