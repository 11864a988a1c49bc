"""The languages of filters: what a consumer asks a broker to leave out.

Pure functions turn the text of an expression into frozen values. So a client refuses a wrong expression
before it calls a broker. The broker evaluates the values on Arrow columns (`rocketq_broker.filters`).
`docs/filters.md` describes both languages.

    tags.parse_tags("paid || refunded")                  -> ("paid", "refunded")
    sql_parser.parse_sql("amount > 100 AND zone = 'eu'") -> sql_ast.And(…)
"""
