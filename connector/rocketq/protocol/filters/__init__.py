"""Filter expressions, parsed: what a consumer may ask a broker to leave out.

Here are the languages, as pure functions from text to frozen values, so that a client
refuses a wrong expression before it asks anyone; the broker evaluates the values on
Arrow columns (`rocketq_broker.filters`). `docs/filters.md` describes both languages.

    tags.parse_tags("paid || refunded")          -> ("paid", "refunded")
    sql.parse_sql("amount > 100 AND zone = 'eu'") -> nodes.And(…)
"""
